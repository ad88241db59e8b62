package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

type runView struct {
	ID        string          `json:"id"`
	Status    string          `json:"status"`
	AgentID   string          `json:"agent_id"`
	ThreadID  *string         `json:"thread_id"`
	Output    json.RawMessage `json:"output"`
	Error     *runError       `json:"error"`
	TokensIn  int64           `json:"tokens_in"`
	TokensOut int64           `json:"tokens_out"`
	CostUSD   float64         `json:"cost_usd"`
	CreatedAt time.Time       `json:"created_at"`
}

type runError struct{ Code, Message string }

func runsCommand() *cobra.Command {
	cmd := group("runs", "list, read, follow and cancel runs")
	cmd.AddCommand(runsListCommand(), runsGetCommand(), runsWatchCommand(), runsCancelCommand())
	return cmd
}

func runsListCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "ls", Short: "list runs, newest first", Args: cobra.NoArgs}
	status := cmd.Flags().String("status", "", "only runs of this status")
	agent := cmd.Flags().String("agent", "", "only runs of this agent id")
	limit := cmd.Flags().Int("limit", 25, "how many, up to 100")
	cmd.RunE = does(func(cmd *cobra.Command, _ []string) error {
		c, err := newClient()
		if err != nil {
			return err
		}
		q := url.Values{"limit": {strconv.Itoa(*limit)}}
		if *status != "" {
			q.Set("status", *status)
		}
		if *agent != "" {
			q.Set("agent_id", *agent)
		}
		var page json.RawMessage
		if err := c.call(cmd.Context(), "GET", "/v1/runs?"+q.Encode(), nil, &page); err != nil {
			return err
		}
		if wantsJSON(cmd) {
			return printJSON(cmd.OutOrStdout(), page)
		}
		var list struct{ Items []runView }
		if err := json.Unmarshal(page, &list); err != nil {
			return err
		}
		w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "RUN\tSTATUS\tAGENT\tTOKENS\tUSD\tCREATED")
		for _, r := range list.Items {
			fmt.Fprintf(w, "%s\t%s\t%s\t%d/%d\t%.4f\t%s\n", r.ID, r.Status, r.AgentID, r.TokensIn, r.TokensOut, r.CostUSD, r.CreatedAt.Format(time.RFC3339))
		}
		return w.Flush()
	})
	return cmd
}

func runsGetCommand() *cobra.Command {
	return &cobra.Command{Use: "get RUN", Short: "one run with its steps", Args: cobra.ExactArgs(1), RunE: does(func(cmd *cobra.Command, args []string) error {
		c, err := newClient()
		if err != nil {
			return err
		}
		var got json.RawMessage
		if err := c.call(cmd.Context(), "GET", "/v1/runs/"+url.PathEscape(args[0]), nil, &got); err != nil {
			return err
		}
		return printJSON(cmd.OutOrStdout(), got)
	})}
}

func runsWatchCommand() *cobra.Command {
	return &cobra.Command{Use: "watch RUN", Short: "follow a run from its first frame to its end", Args: cobra.ExactArgs(1), RunE: does(func(cmd *cobra.Command, args []string) error {
		c, err := newClient()
		if err != nil {
			return err
		}
		return watch(cmd, c, url.PathEscape(args[0]))
	})}
}

func runsCancelCommand() *cobra.Command {
	return &cobra.Command{Use: "cancel RUN", Short: "end a run", Args: cobra.ExactArgs(1), RunE: does(func(cmd *cobra.Command, args []string) error {
		c, err := newClient()
		if err != nil {
			return err
		}
		var got struct {
			RunID  string `json:"run_id"`
			Status string `json:"status"`
		}
		if err := c.call(cmd.Context(), "POST", "/v1/runs/"+url.PathEscape(args[0])+"/cancel", nil, &got); err != nil {
			return err
		}
		if wantsJSON(cmd) {
			return printJSON(cmd.OutOrStdout(), got)
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), got.Status)
		return err
	})}
}

// watch prints a run's frames: one JSON object a line, or the text as it comes.
func watch(cmd *cobra.Command, c *client, run string) error {
	var failed error
	out := &display{w: cmd.OutOrStdout()}
	err := c.follow(cmd.Context(), run, "?replay=full", func(f frame) error {
		if f.Type == "run.failed" {
			failed = runFailed(f)
		}
		if wantsJSON(cmd) {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), string(f.Data))
			return err
		}
		return out.frame(f)
	})
	return errors.Join(err, failed)
}

func runFailed(f frame) error {
	var e runError
	if err := json.Unmarshal(f.Data, &e); err != nil {
		return err
	}
	return fmt.Errorf("the run failed: %s: %s", e.Code, visible(e.Message))
}

// display shows a run to a person: text as it comes, the rest as lines.
type display struct {
	w     io.Writer
	inRow bool // the cursor is not at the beginning of a line
}

func (d *display) text(s string) error {
	if s == "" {
		return nil
	}
	d.inRow = !strings.HasSuffix(s, "\n")
	_, err := io.WriteString(d.w, s)
	return err
}

// line begins on a new line.
func (d *display) line(format string, args ...any) error {
	if d.inRow {
		format = "\n" + format
	}
	return d.text(fmt.Sprintf(format+"\n", args...))
}

// howToApprove is what decides an approval elsewhere.
func howToApprove(approval string) string {
	return "svc approvals approve " + visible(approval)
}

func (d *display) frame(f frame) error {
	var v struct {
		Text          string    `json:"text"`
		Tool          string    `json:"tool"`
		OK            bool      `json:"ok"`
		ArgsPreview   string    `json:"args_preview"`
		OutputPreview string    `json:"output_preview"`
		ApprovalID    string    `json:"approval_id"`
		ExpiresAt     time.Time `json:"expires_at"`
		Decision      string    `json:"decision"`
		From          string    `json:"from"`
		To            string    `json:"to"`
		TokensIn      int64     `json:"tokens_in"`
		TokensOut     int64     `json:"tokens_out"`
		CostUSD       float64   `json:"cost_usd"`
	}
	if err := json.Unmarshal(f.Data, &v); err != nil {
		return err
	}
	switch f.Type {
	case "llm.delta":
		return d.text(harmless(v.Text))
	case "tool.called":
		return d.line("[%s %s]", visible(v.Tool), visible(v.ArgsPreview))
	case "tool.result":
		outcome := "ok"
		if !v.OK {
			outcome = "failed"
		}
		return d.line("[%s %s]", outcome, visible(v.OutputPreview))
	case "approval.required":
		return d.line("[%s needs an approval until %s: %s]", visible(v.Tool), v.ExpiresAt.Format(time.RFC3339), howToApprove(v.ApprovalID))
	case "run.waiting":
		return d.line("[waiting for a decision]")
	case "run.resumed":
		return d.line("[approval %s: %s]", visible(v.ApprovalID), visible(v.Decision))
	case "handoff":
		return d.line("[%s hands over to %s]", visible(v.From), visible(v.To))
	case "run.completed":
		return d.line("[%d tokens in, %d out, %.4f USD]", v.TokensIn, v.TokensOut, v.CostUSD)
	}
	return nil
}
