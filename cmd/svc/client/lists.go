package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
)

// idHelp is the help text about naming things, for every group.
const idHelp = "An ID is a full id, or at least the last 8 hex digits of one, as lists show it. Agents, servers, skills and workflows may be named by their slugs."

// limitFlag adds --limit.
func limitFlag(cmd *cobra.Command, usual int) *int {
	return cmd.Flags().Int("limit", usual, "how many at most")
}

// checkLimit validates --limit.
func checkLimit(most int) error {
	if most < 1 {
		return cli.WrongUse(errors.New("--limit must be at least 1"))
	}
	return nil
}

// listed reads up to most items of a list.
func listed(cmd *cobra.Command, path string, q url.Values, most int) (items []json.RawMessage, next *string, err error) {
	if err := checkLimit(most); err != nil {
		return nil, nil, err
	}
	c, err := newClient()
	if err != nil {
		return nil, nil, err
	}
	return c.Pages(cmd.Context(), path, q, most)
}

// listCommand returns a command that lists all things of a kind, one a row below head.
func listCommand[V any](k kind, short, things, head string, row func(w io.Writer, v *V)) *cobra.Command {
	cmd := &cobra.Command{Use: "ls", Short: short, Args: cobra.NoArgs}
	most := limitFlag(cmd, 100)
	cmd.RunE = cli.Does(func(cmd *cobra.Command, _ []string) error {
		items, next, err := listed(cmd, k.path, url.Values{}, *most)
		if err != nil {
			return err
		}
		return cli.PrintList(cmd, items, next, *most, things, head, row)
	})
	return cmd
}

// show prints the resource at a path.
func show(cmd *cobra.Command, c *Client, path string) error {
	var got json.RawMessage
	if err := c.Call(cmd.Context(), http.MethodGet, path, nil, &got); err != nil {
		return err
	}
	return cli.PrintJSON(cmd.OutOrStdout(), got)
}

// onOne returns a command about one thing of a kind.
func onOne(k kind, use, short string, work func(cmd *cobra.Command, c *Client, path string) error) *cobra.Command {
	return &cobra.Command{Use: use + " ID", Short: short, Args: cobra.ExactArgs(1), ValidArgsFunction: completes(k, 1), RunE: cli.Does(func(cmd *cobra.Command, args []string) error {
		c, err := newClient()
		if err != nil {
			return err
		}
		found, err := c.find(cmd.Context(), k, args[0])
		if err != nil {
			return err
		}
		return work(cmd, c, k.at(found))
	})}
}

// pendingKind is the kind of approvals that complete the arguments of a decision.
var pendingKind = kind{what: "approval", path: approvalKind.path, query: "status=pending"}

const (
	// completeWithin is the deadline of a completion.
	completeWithin = 2 * time.Second
	maxCompleted   = 100
)

// completes offers a kind's slugs or short ids for the first n arguments, or for all if n is
// -1. After an error it offers nothing.
func completes(k kind, n int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if n >= 0 && len(args) >= n {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		c, err := newClient()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		q, err := url.ParseQuery(k.query)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx := cmd.Context()
		if ctx == nil {
			ctx = context.Background()
		}
		ctx, cancel := context.WithTimeout(ctx, completeWithin)
		defer cancel()
		items, _, err := c.Pages(ctx, k.path, q, maxCompleted)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var offered []string
		for _, item := range items {
			of, err := nameOf(item)
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			word := cli.ShortID(of.ID)
			if k.slugs && of.Slug != "" {
				word = cli.Visible(of.Slug)
			}
			offered = append(offered, word+"\t"+of.Label)
		}
		return offered, cobra.ShellCompDirectiveNoFileComp
	}
}

// filled is the value of a flag that must not be empty.
type filled string

func (f *filled) String() string { return string(*f) }
func (f *filled) Type() string   { return "string" }

func (f *filled) Set(text string) error {
	if text == "" {
		return errors.New("must not be empty")
	}
	*f = filled(text)
	return nil
}

// filledFlag adds a flag that names one thing, or filters a list. Without it the command means all
// things, so a script whose variable is empty must not seem to give none: that is wrong use.
func filledFlag(cmd *cobra.Command, name, usual, usage string) *string {
	f := filled(usual)
	cmd.Flags().Var(&f, name, usage)
	return (*string)(&f)
}

// agentFlag adds --agent.
func agentFlag(cmd *cobra.Command, things string) *string {
	agent := filledFlag(cmd, "agent", "", "only "+things+" of this agent, by its slug or id")
	if err := cmd.RegisterFlagCompletionFunc("agent", completes(agentKind, -1)); err != nil {
		panic(err) // the flag is defined a line above
	}
	return agent
}
