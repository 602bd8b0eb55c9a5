"""From graph, hardware and configuration to a plan: Python interfaces of C's stages."""
