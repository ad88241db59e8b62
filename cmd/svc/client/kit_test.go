package client

import (
	"bytes"
	"context"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
)

type object = map[string]any

// version is the build that the tests' commands say they are.
const version = "of-a-test"

func rootCommand() *cobra.Command {
	root := cli.NewRoot("svc", "the commands under test", version)
	root.AddCommand(Commands()...)
	return root
}

// execute runs one command line in this process and returns its exit code.
func execute(ctx context.Context, args []string, in io.Reader, out, errs io.Writer) int {
	root := rootCommand()
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errs)
	cli.Finish(root, nil)
	return cli.Run(ctx, root, args)
}

// everyCommand calls each with all commands.
func everyCommand(each func(cmd *cobra.Command)) {
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		each(cmd)
		for _, c := range cmd.Commands() {
			walk(c)
		}
	}
	walk(rootCommand())
}

// within returns a context that ends with the test, or when a test that hangs is to fail.
func within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 8*limit)
	t.Cleanup(cancel)
	return ctx
}

// eventually polls until ok, or fails the test when ctx ends.
func eventually(t *testing.T, ctx context.Context, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: not within the test's time", what)
		}
	}
}

// logText collects output that is read while it is written.
type logText struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
