// Command svc is the agent platform service: the one binary that serves, manages
// and talks to it. This package reads the environment and joins the parts; it
// holds no rules of its own.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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
	if version == "dev" {
		version = stampedVersion()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(execute(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// execute runs one command line and answers its exit code.
func execute(ctx context.Context, args []string, in io.Reader, out, errs io.Writer) int {
	root := commandLine(in, out, errs)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	code := exitWrongUse
	if errors.As(err, new(failure)) {
		code = exitFailed
	}
	report(errs, asksJSON(args), err, code)
	return code
}

// stampedVersion is what go build notes of the source, for a binary that was
// built without a version.
func stampedVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return version
}

// asksJSON reports whether a command line has --json, also one that cannot be
// parsed.
func asksJSON(args []string) bool {
	for _, arg := range args {
		switch arg {
		case "--":
			return false
		case "--json", "--json=true":
			return true
		}
	}
	return false
}

// reported is an error as --json shows it: the service's problem, or one of our
// own.
type reported struct {
	Code   string `json:"code"`
	Status int    `json:"status,omitempty"`
	Title  string `json:"title,omitempty"`
	Detail string `json:"detail"`
	Errors []any  `json:"errors,omitempty"`
	// RetryAfter is in seconds.
	RetryAfter float64 `json:"retry_after,omitempty"`
	Exit       int     `json:"exit_code"`
}

// report prints an error: a line, or one line of JSON.
func report(w io.Writer, asJSON bool, err error, code int) {
	if !asJSON {
		fmt.Fprintln(w, "svc:", err)
		return
	}
	r := reported{Code: "FAILED", Detail: err.Error(), Exit: code}
	if code == exitWrongUse {
		r.Code = "USAGE"
	}
	var known *apiError
	var lookup *lookupError
	switch {
	case errors.As(err, &known):
		r.Code, r.Status, r.Title, r.Errors, r.RetryAfter = known.Code, known.Status, known.Title, known.Errors, known.RetryAfter
		if err.Error() == known.Error() {
			r.Detail = cmp.Or(known.Detail, known.Title)
		}
	case errors.As(err, &lookup):
		r.Code = lookup.code
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(r) // nothing is left to tell it to
}

// commandLine is the whole command line: ours, and what cobra brings.
func commandLine(in io.Reader, out, errs io.Writer) *cobra.Command {
	root := rootCommand()
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errs)
	root.InitDefaultVersionFlag()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	decorate(root)
	return root
}

func rootCommand() *cobra.Command {
	root := group("svc", "a multi-tenant agent platform service")
	root.SilenceErrors, root.SilenceUsage = true, true
	root.PersistentPreRun = func(cmd *cobra.Command, _ []string) {
		switch cmd.Name() {
		case "serve", "dev", "doctor": // they report it themselves
		case "health", "bash", "zsh", "fish", "powershell", cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd: // programs read them
		default:
			for _, text := range strangers(os.Environ()) {
				if wantsJSON(cmd) {
					_ = json.NewEncoder(cmd.ErrOrStderr()).Encode(map[string]string{"warning": text}) // nothing is left to tell it to
					continue
				}
				fmt.Fprintln(cmd.ErrOrStderr(), "svc: warning:", text)
			}
		}
	}
	root.Version = version
	root.SetVersionTemplate("svc {{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return likeFlag(cmd, err) })
	root.PersistentFlags().Bool("json", false, "print JSON, errors too")
	root.AddCommand(
		serveCommand(), devCommand(), migrateCommand(), doctorCommand(), healthCommand(), openapiCommand(), versionCommand(),
		tenantCommand(), keyCommand(), userCommand(), resealCommand(),
		loginCommand(), logoutCommand(), agentsCommand(), threadsCommand(), serversCommand(), policiesCommand(),
		chatCommand(), runsCommand(), approvalsCommand(), grantsCommand(), webhooksCommand(), listenCommand(), triggersCommand(), embedKeysCommand(), endUsersCommand(), statusCommand(), clusterCommand(),
	)
	return root
}

// aliases are the words that other tools have for our verbs.
var aliases = map[string][]string{"ls": {"list"}, "get": {"show"}, "create": {"new"}, "rm": {"delete", "remove"}, "revoke": {"rm", "delete"}}

// decorate gives every command its examples, and every verb its other names.
func decorate(cmd *cobra.Command) {
	if cmd.Example == "" {
		cmd.Example = "  " + strings.Join(examples[cmd.CommandPath()], "\n  ")
	}
	if cmd.HasParent() && cmd.Parent().HasParent() {
		cmd.Aliases = append(cmd.Aliases, aliases[cmd.Name()]...)
	}
	for _, c := range cmd.Commands() {
		decorate(c)
	}
}

// group is a command that only holds others: alone it shows them, and a name
// that it does not hold is wrong use.
func group(use, short string) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			said := fmt.Sprintf("unknown command %q for %q", visible(args[0]), cmd.CommandPath())
			var words []string
			for _, c := range cmd.Commands() {
				words = append(append(words, c.Name()), c.Aliases...)
			}
			if like := nearest(strings.ToLower(args[0]), words); like != "" {
				said += fmt.Sprintf("; did you mean %q?", like)
			} else {
				said += fmt.Sprintf("; see %s --help", cmd.CommandPath())
			}
			return errors.New(said)
		}}
}

// likeFlag names the flag that an unknown one was probably meant to be.
func likeFlag(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err
	}
	var words []string
	collect := func(f *pflag.Flag) { words = append(words, f.Name) }
	cmd.Flags().VisitAll(collect)
	cmd.InheritedFlags().VisitAll(collect)
	if like := nearest(unknown.GetSpecifiedName(), words); like != "" {
		return fmt.Errorf("%w; did you mean --%s?", err, like)
	}
	return err
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
