package launcher
