"""From certificates to what people read."""
