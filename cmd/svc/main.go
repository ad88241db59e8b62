// Command svc is the agent platform service: the one binary that serves, manages
// and talks to it. This package reads the environment and joins the parts; it
// holds no rules of its own.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the build.
var version = "dev"

// Exit codes (open-parts.md, Command line).
const (
	exitDone     = 0
	exitFailed   = 1
	exitWrongUse = 2
)

// failure marks an error of the work itself; every other error that reaches
// main is wrong use of the command line or of the environment.
type failure struct{ err error }

func (f failure) Error() string { return f.err.Error() }
func (f failure) Unwrap() error { return f.err }

// misuse marks an error of how the command was called that only its work found.
type misuse struct{ err error }

func (m misuse) Error() string { return m.err.Error() }
func (m misuse) Unwrap() error { return m.err }

func main() {
	giveHeapRoom()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(execute(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// execute runs one command line and answers its exit code.
func execute(ctx context.Context, args []string, in io.Reader, out, errs io.Writer) int {
	root := rootCommand()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errs)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	fmt.Fprintln(errs, "svc:", err)
	if errors.As(err, new(failure)) {
		return exitFailed
	}
	return exitWrongUse
}

func rootCommand() *cobra.Command {
	root := group("svc", "a multi-tenant agent platform service")
	root.SilenceErrors, root.SilenceUsage = true, true
	root.CompletionOptions.DisableDefaultCmd = true
	root.PersistentFlags().Bool("json", false, "print JSON")
	root.PersistentPreRun = func(cmd *cobra.Command, _ []string) {
		switch cmd.Name() {
		case "serve", "dev", "doctor": // they report it themselves
		case "health", "completion", cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd: // programs read them
		default:
			for _, text := range strangers(os.Environ()) {
				fmt.Fprintln(cmd.ErrOrStderr(), "svc: warning:", text)
			}
		}
	}
	root.AddCommand(
		serveCommand(), devCommand(), migrateCommand(), doctorCommand(), healthCommand(), openapiCommand(), versionCommand(),
		tenantCommand(), keyCommand(), userCommand(), resealCommand(),
		chatCommand(), runsCommand(), approvalsCommand(), grantsCommand(), webhooksCommand(), listenCommand(), triggersCommand(), embedKeysCommand(), endUsersCommand(), statusCommand(), clusterCommand(),
	)
	return root
}

// group is a command that only holds others: alone it shows them, and a name
// that it does not hold is wrong use.
func group(use, short string) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
}

// does turns the work of a command into cobra's form: its errors are failures,
// unless they say that it was misused.
func does(work func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		err := work(cmd, args)
		if err == nil || errors.As(err, new(failure)) || errors.As(err, new(misuse)) {
			return err
		}
		return failure{err}
	}
}

func wantsJSON(cmd *cobra.Command) bool {
	on, err := cmd.Flags().GetBool("json")
	return err == nil && on
}

func versionCommand() *cobra.Command {
	return &cobra.Command{Use: "version", Short: "print the version", Args: cobra.NoArgs, RunE: does(func(cmd *cobra.Command, _ []string) error {
		if wantsJSON(cmd) {
			return printJSON(cmd.OutOrStdout(), map[string]string{"version": version})
		}
		_, err := fmt.Fprintln(cmd.OutOrStdout(), version)
		return err
	})}
}
