// Command svc is the agent platform service: the one binary that serves, manages
// and talks to it. This package reads the environment and joins the parts; it
// holds no rules of its own.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
	"agentsvc/cmd/svc/client"
	"agentsvc/transport/browser"
	"agentsvc/transport/parser"
)

// version is set by the build.
var version = "dev"

func main() {
	if version == "dev" {
		version = stampedVersion()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(execute(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// stampedVersion returns the version that go build records, for a binary that was built
// without one.
func stampedVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return version
}

// commandLine returns the whole command line: our commands and those of cobra.
func commandLine(in io.Reader, out, errs io.Writer) *cobra.Command {
	root := rootCommand()
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errs)
	cli.Finish(root, examples)
	return root
}

func rootCommand() *cobra.Command {
	root := cli.NewRoot("svc", "a multi-tenant agent platform service", version)
	root.PersistentPreRun = func(cmd *cobra.Command, _ []string) {
		switch cmd.Name() {
		case "serve", "dev", "doctor": // they report unknown variables themselves
		case "health", parser.Command, browser.Command, "bash", "zsh", "fish", "powershell", cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd: // programs read their output
		default:
			for _, text := range strangers(os.Environ()) {
				if cli.WantsJSON(cmd) {
					_ = json.NewEncoder(cmd.ErrOrStderr()).Encode(map[string]string{"warning": text}) // there is no other way to report it
					continue
				}
				fmt.Fprintln(cmd.ErrOrStderr(), "svc: warning:", text)
			}
		}
	}
	root.AddCommand(
		serveCommand(), devCommand(), migrateCommand(), doctorCommand(), healthCommand(), openapiCommand(), versionCommand(),
		tenantCommand(), keyCommand(), userCommand(), resealCommand(), filesCommand(),
		clusterCommand(), parseCommand(), browserCommand(),
	)
	root.AddCommand(client.Commands(teach)...)
	return root
}

// execute runs one command line and returns its exit code.
func execute(ctx context.Context, args []string, in io.Reader, out, errs io.Writer) int {
	return cli.Run(ctx, commandLine(in, out, errs), args)
}

func versionCommand() *cobra.Command {
	return &cobra.Command{Use: "version", Short: "print the version", Args: cobra.NoArgs, RunE: cli.Does(func(cmd *cobra.Command, _ []string) error {
		if cli.WantsJSON(cmd) {
			return cli.PrintJSON(cmd.OutOrStdout(), map[string]string{"version": version})
		}
		_, err := fmt.Fprintln(cmd.OutOrStdout(), version)
		return err
	})}
}
