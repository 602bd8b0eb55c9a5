"""From graph, hardware and configuration to a plan: the faces of the stages that C carries out."""
