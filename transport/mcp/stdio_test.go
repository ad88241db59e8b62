package mcp

func stdioServer(string) {}
