"""What each command does, apart from reading its options."""
