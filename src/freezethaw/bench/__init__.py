"""What the project measures about itself, as commands."""
