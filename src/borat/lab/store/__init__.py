"""What runs leave behind: a folder for each, written whole or not at all, and how it is read again."""
