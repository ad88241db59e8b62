package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
	"agentsvc/schemas/event"
	"agentsvc/schemas/pause"
)

func tailCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "tail [--topics TOPICS]", Short: "show what changes in the tenant, as it happens",
		Long: "One line for each run, approval or resource that has changed. Nothing is replayed: what changed while the stream was broken is not shown. " +
			"With --json each line is the JSON of one frame.",
		Args: cobra.NoArgs,
	}
	topics := filledFlag(cmd, "topics", "", "some of "+strings.Join(event.Topics, ", ")+", separated by commas (default all)")
	cmd.RunE = cli.Does(func(cmd *cobra.Command, _ []string) error {
		c, err := newClient()
		if err != nil {
			return err
		}
		path := "/v1/feed"
		if *topics != "" {
			path += "?topics=" + url.QueryEscape(*topics)
		}
		err = c.tail(cmd.Context(), path, func(f Frame) error { return showChange(cmd, f, time.Now()) })
		if cmd.Context().Err() != nil {
			return nil // interrupted by the user
		}
		return err
	})
	return cmd
}

// tail reads a feed and connects again when it breaks, until ctx ends or the service refuses.
func (c *Client) tail(ctx context.Context, path string, each func(Frame) error) error {
	const first, most = 500 * time.Millisecond, 4 * time.Second
	wait := first
	for {
		none := ""
		_, err := c.stream(ctx, path, &none, func(f Frame) error {
			wait = first
			return each(f)
		})
		var refused *APIError
		var broken BrokenStream
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &refused) && (refused.Status >= 500 || refused.Status == http.StatusTooManyRequests):
		case !errors.As(err, &broken):
			return err
		}
		if !pause.For(ctx, wait) {
			return ctx.Err()
		}
		wait = min(2*wait, most)
	}
}

// showChange prints one frame of a feed.
func showChange(cmd *cobra.Command, f Frame, at time.Time) error {
	if cli.WantsJSON(cmd) {
		return cli.PrintJSONLine(cmd.OutOrStdout(), f.Data)
	}
	var v struct {
		ID         string   `json:"id"`
		Status     string   `json:"status"`
		AgentID    string   `json:"agent_id"`
		WorkflowID string   `json:"workflow_id"`
		RunID      string   `json:"run_id"`
		Risk       string   `json:"risk"`
		Role       string   `json:"assignee_role"`
		Kind       string   `json:"kind"`
		ParentID   string   `json:"parent_id"`
		Topics     []string `json:"topics"`
	}
	if err := json.Unmarshal(f.Data, &v); err != nil {
		return err
	}
	said := ""
	switch event.Type(f.Type) {
	case event.FeedReady:
		said = "connected"
	case event.FeedLost:
		said = "more has changed than is shown: " + cli.Visible(strings.Join(v.Topics, ", "))
	case event.RunChanged:
		said = fmt.Sprintf("run %s %s", cli.ShortID(v.ID), cli.Visible(v.Status))
		if v.AgentID != "" {
			said += ", agent " + cli.ShortID(v.AgentID)
		}
		if v.WorkflowID != "" {
			said += ", workflow " + cli.ShortID(v.WorkflowID)
		}
	case event.ApprovalChanged:
		said = fmt.Sprintf("approval %s %s, %s risk, for %s, run %s", cli.ShortID(v.ID), cli.Visible(v.Status), cli.Visible(v.Risk), cli.Visible(v.Role), cli.ShortID(v.RunID))
	case event.ResourceChanged:
		said = fmt.Sprintf("%s %s", cli.Visible(v.Kind), cli.ShortID(v.ID))
		if v.ParentID != "" {
			said += " of " + cli.ShortID(v.ParentID)
		}
	default:
		return nil // of a newer service
	}
	_, err := io.WriteString(cmd.OutOrStdout(), at.Format("15:04:05")+"  "+said+"\n")
	return err
}
