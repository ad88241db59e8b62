package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"agentsvc/transport/browser"
	"agentsvc/transport/egress"
)

// openBrowser returns the executor of browser skills. It starts nothing before the first job, and
// ends what a killed node of the same data directory left.
func openBrowser(c *Config, guard *egress.Guard, log zerolog.Logger) (*browser.Browser, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this binary, which starts browsers: %w", err)
	}
	data := absolute(c.DataDir)
	sum := sha256.Sum256([]byte(data))
	return browser.New(browser.Config{Guard: guard, Command: []string{self, browser.Command}, Name: "node-" + hex.EncodeToString(sum[:6]), DataDir: data,
		Driver: c.Browser.Driver, Chromium: c.Browser.Path, CDP: c.Browser.CDP, ProxyListen: c.Browser.Proxy, NoSandbox: c.Browser.NoSandbox, Production: c.Production,
		StepTimeout: c.Browser.StepTimeout, JobTimeout: c.Browser.JobTimeout, Log: log})
}

// browserCommand is the child of a browser. People have no use for it.
func browserCommand() *cobra.Command {
	return &cobra.Command{Use: browser.Command, Short: "start a browser for a node (internal)", Hidden: true, DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error { return browser.Child(args) }}
}
