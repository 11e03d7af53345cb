"""Options of front ends: they are checked here, and made into plans and settings of the runtime."""
