"""Reports of the lab's measurements: tables, pictures, pages and TensorBoard scalars."""
