"""Reports: what the lab measured as tables, pictures, a page and TensorBoard scalars."""
