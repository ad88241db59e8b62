package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
)

func chatCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "chat AGENT",
		Short: "talk to a published agent, by its slug or id, on a new thread",
		Long:  "Each line of the input is one message; the answer streams as it is written. An empty line or the end of the input ends the talk.",
		Args:  cobra.ExactArgs(1),
		RunE: does(func(cmd *cobra.Command, args []string) error {
			c, err := newClient()
			if err != nil {
				return err
			}
			return chat(cmd, c, args[0])
		}),
	}
}

func chat(cmd *cobra.Command, c *client, agent string) error {
	ctx := cmd.Context()
	agentID, err := c.findAgent(ctx, agent)
	if err != nil {
		return err
	}
	var thread struct{ ID string }
	if err := c.call(ctx, "POST", "/v1/threads", map[string]any{"agent_id": agentID}, &thread); err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if !wantsJSON(cmd) {
		fmt.Fprintf(out, "thread %s; an empty line ends the talk\n", thread.ID)
	}
	in := bufio.NewReader(cmd.InOrStdin())
	for {
		if !wantsJSON(cmd) {
			fmt.Fprint(out, "> ")
		}
		line, err := in.ReadString('\n')
		if line = strings.TrimSpace(line); line == "" {
			if err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			return nil
		}
		var posted struct {
			RunID string `json:"run_id"`
		}
		if err := c.call(ctx, "POST", "/v1/threads/"+thread.ID+"/messages", map[string]any{"content": line}, &posted); err != nil {
			return err
		}
		if err := watch(cmd, c, posted.RunID); err != nil {
			if ctx.Err() != nil {
				return err
			}
			fmt.Fprintln(cmd.ErrOrStderr(), err) // the talk goes on after a failed answer
		}
	}
}

// findAgent takes an id as it is and looks a slug up.
func (c *client) findAgent(ctx context.Context, agent string) (string, error) {
	if len(agent) == 36 && strings.Count(agent, "-") == 4 {
		return agent, nil
	}
	cursor := ""
	for {
		q := url.Values{"limit": {"100"}}
		if cursor != "" {
			q.Set("cursor", cursor)
		}
		var page struct {
			Items      []struct{ ID, Slug string }
			NextCursor *string `json:"next_cursor"`
		}
		if err := c.call(ctx, "GET", "/v1/agents?"+q.Encode(), nil, &page); err != nil {
			return "", err
		}
		for _, a := range page.Items {
			if a.Slug == agent {
				return a.ID, nil
			}
		}
		if page.NextCursor == nil {
			return "", fmt.Errorf("there is no agent with the slug %q", agent)
		}
		cursor = *page.NextCursor
	}
}
