package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
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
	err := c.follow(cmd.Context(), run, "?replay=full", func(f frame) error {
		if f.Type == "run.failed" {
			failed = runFailed(f)
		}
		if wantsJSON(cmd) {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), string(f.Data))
			return err
		}
		return printFrame(cmd.OutOrStdout(), f)
	})
	return errors.Join(err, failed)
}

func runFailed(f frame) error {
	var e runError
	if err := json.Unmarshal(f.Data, &e); err != nil {
		return err
	}
	return fmt.Errorf("the run failed: %s: %s", e.Code, e.Message)
}

// printFrame shows a frame to a person: text as it comes, the rest as a line.
func printFrame(w io.Writer, f frame) error {
	var d struct {
		Idx           int
		Text          string
		Kind, Name    string
		Tool          string
		OK            bool    `json:"ok"`
		ArgsPreview   string  `json:"args_preview"`
		OutputPreview string  `json:"output_preview"`
		TokensIn      int64   `json:"tokens_in"`
		TokensOut     int64   `json:"tokens_out"`
		CostUSD       float64 `json:"cost_usd"`
	}
	if err := json.Unmarshal(f.Data, &d); err != nil {
		return err
	}
	var err error
	switch f.Type {
	case "llm.delta":
		_, err = fmt.Fprint(w, d.Text)
	case "tool.called":
		_, err = fmt.Fprintf(w, "\n[%s %s]\n", d.Tool, d.ArgsPreview)
	case "tool.result":
		_, err = fmt.Fprintf(w, "[ok=%v %s]\n", d.OK, d.OutputPreview)
	case "run.waiting":
		_, err = fmt.Fprintln(w, "\n[waiting for an approval]")
	case "run.completed":
		_, err = fmt.Fprintf(w, "\n[%d tokens in, %d out, %.4f USD]\n", d.TokensIn, d.TokensOut, d.CostUSD)
	}
	return err
}
