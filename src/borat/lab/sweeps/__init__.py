"""Many runs: a grid, the jobs that it makes, and where they are done."""
