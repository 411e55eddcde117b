"""What no cache can do better than, and what nobody could have had."""
