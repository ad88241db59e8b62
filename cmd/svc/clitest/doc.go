// Package clitest runs commands in tests: at a terminal, and with output that is
// read while it is written.
package clitest

import (
	"bytes"
	"sync"

	"github.com/spf13/cobra"
)

// Output collects what a command writes. It may be read while the command writes.
type Output struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// EachCommand calls each with cmd and all commands below it.
func EachCommand(cmd *cobra.Command, each func(*cobra.Command)) {
	each(cmd)
	for _, c := range cmd.Commands() {
		EachCommand(c, each)
	}
}
