"""The lab: experiments with BORAT and what people would use instead. The core never imports it."""
