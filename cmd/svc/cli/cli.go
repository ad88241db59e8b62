// Package cli holds what all commands of svc share: exit codes and errors, groups of
// commands, output as JSON or as a list, names of things, and text that is safe to show.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Exit codes (open-parts.md, Command line).
const (
	exitDone     = 0
	ExitFailed   = 1 // of an error of the work itself
	exitWrongUse = 2
)

// failure marks an error of the work itself. Every other error that reaches Run is wrong
// use of the command line or of the environment.
type failure struct{ err error }

func (f failure) Error() string { return f.err.Error() }
func (f failure) Unwrap() error { return f.err }

// misuse marks wrong use that is found only while the command works.
type misuse struct{ err error }

// WrongUse marks err as wrong use of the command line.
func WrongUse(err error) error { return misuse{err} }

func (m misuse) Error() string { return m.err.Error() }
func (m misuse) Unwrap() error { return m.err }

// Run runs one command line of root and returns its exit code.
func Run(ctx context.Context, root *cobra.Command, args []string) int {
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	code := exitWrongUse
	if errors.As(err, new(failure)) || ctx.Err() != nil { // interrupted while it read its input
		code = ExitFailed
	}
	Report(root.ErrOrStderr(), asksJSON(args), err, code)
	return code
}

// asksJSON reports whether a command line has --json, even if it cannot be parsed.
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

// Reported is an error as --json shows it: a problem of the service or of the command.
type Reported struct {
	Code   string `json:"code"`
	Status int    `json:"status,omitempty"`
	Title  string `json:"title,omitempty"`
	Detail string `json:"detail"`
	Errors []any  `json:"errors,omitempty"`
	// RetryAfter is in seconds.
	RetryAfter float64 `json:"retry_after,omitempty"`
	Exit       int     `json:"exit_code"`
}

// explained is an error that says more to --json than its text.
type explained interface {
	error
	// Explain completes what is shown. Its Detail is the text of the whole error.
	Explain(*Reported)
}

// Report prints an error: a line, or one line of JSON.
func Report(w io.Writer, asJSON bool, err error, code int) {
	if !asJSON {
		fmt.Fprintln(w, "svc:", err)
		return
	}
	r := Reported{Code: "FAILED", Detail: err.Error(), Exit: code}
	if code == exitWrongUse {
		r.Code = "USAGE"
	}
	var known explained
	if errors.As(err, &known) {
		known.Explain(&r)
	}
	_ = PrintJSONLine(w, r) // there is no other way to report it
}

// NewRoot returns the root of a command line without commands.
func NewRoot(name, short, version string) *cobra.Command {
	root := Group(name, short)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.Version = version
	root.SetVersionTemplate(name + " {{.Version}}\n")
	root.SetFlagErrorFunc(likeFlag)
	root.PersistentFlags().Bool("json", false, "print JSON, also for errors")
	return root
}

// Finish adds the commands of cobra, and gives every command its examples by its path and
// every verb its other names.
func Finish(root *cobra.Command, examples map[string][]string) {
	root.InitDefaultVersionFlag()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	decorate(root, examples)
}

// aliases are the words of other tools for our verbs.
var aliases = map[string][]string{"ls": {"list"}, "get": {"show"}, "create": {"new"}, "rm": {"delete", "remove"}, "revoke": {"rm", "delete"}}

// decorate gives every command its examples, and every verb its other names.
func decorate(cmd *cobra.Command, examples map[string][]string) {
	if cmd.Example == "" {
		cmd.Example = "  " + strings.Join(examples[cmd.CommandPath()], "\n  ")
	}
	if cmd.HasParent() && cmd.Parent().HasParent() && !slices.ContainsFunc(cmd.Parent().Commands(), func(c *cobra.Command) bool { return slices.Contains(aliases[cmd.Name()], c.Name()) }) {
		cmd.Aliases = append(cmd.Aliases, aliases[cmd.Name()]...) // unless one is another verb here
	}
	for _, c := range cmd.Commands() {
		decorate(c, examples)
	}
}

// Group returns a command that only holds others. Alone it lists them; an unknown name is
// wrong use.
func Group(use, short string) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			said := fmt.Sprintf("unknown command %q for %q", Visible(args[0]), cmd.CommandPath())
			var words []string
			for _, c := range cmd.Commands() {
				words = append(append(words, c.Name()), c.Aliases...)
			}
			if like := Nearest(strings.ToLower(args[0]), words); like != "" {
				said += fmt.Sprintf("; did you mean %q?", like)
			} else {
				said += fmt.Sprintf("; see %s --help", cmd.CommandPath())
			}
			return errors.New(said)
		}}
}

// likeFlag returns the flag that was probably meant.
func likeFlag(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err
	}
	var words []string
	collect := func(f *pflag.Flag) { words = append(words, f.Name) }
	cmd.Flags().VisitAll(collect)
	cmd.InheritedFlags().VisitAll(collect)
	if like := Nearest(unknown.GetSpecifiedName(), words); like != "" {
		return fmt.Errorf("%w; did you mean --%s?", err, like)
	}
	return err
}

// Does wraps the work of a command for cobra. Its errors are failures, except those of
// WrongUse.
func Does(work func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		err := work(cmd, args)
		if err == nil || errors.As(err, new(failure)) || errors.As(err, new(misuse)) {
			return err
		}
		return failure{err}
	}
}

// WantsJSON reports whether a command was called with --json.
func WantsJSON(cmd *cobra.Command) bool {
	on, err := cmd.Flags().GetBool("json")
	return err == nil && on
}

// Required marks flags that a command needs. Without them it is wrong use.
func Required(cmd *cobra.Command, flags ...string) {
	for _, f := range flags {
		if err := cmd.MarkFlagRequired(f); err != nil {
			panic(err) // the flag is defined a line above
		}
	}
}
