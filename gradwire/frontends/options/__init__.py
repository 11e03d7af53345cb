"""What users ask for: compressors, rules, weights and scalers, as the runtime takes them."""
