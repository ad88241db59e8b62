package client

import (
	"context"
	"io"
	"os"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
	"agentsvc/cmd/svc/clitest"
)

type object = map[string]any

// version is the build that the tests' commands say they are.
const version = "of-a-test"

func rootCommand() *cobra.Command {
	root := cli.NewRoot("svc", "the commands under test", version)
	root.AddCommand(Commands(showOnce)...)
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
func everyCommand(each func(cmd *cobra.Command)) { clitest.EachCommand(rootCommand(), each) }

// atTerminal runs a command whose input is a terminal.
func atTerminal(t *testing.T, args ...string) *clitest.Terminal {
	t.Helper()
	return clitest.AtTerminal(t, func(ctx context.Context, in *os.File, out, errs *clitest.Output) int {
		return execute(ctx, args, in, out, errs)
	})
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
