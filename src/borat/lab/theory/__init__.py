"""The paper's theorems: problems that meet their assumptions, the bounds they give, and figures of both."""
