"""What is known of a checkpoint without its weights: family, geometry, resize rule, widths. Never imports torch."""
