package client

import (
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
)

// RunView is a run as commands show it.
type RunView struct {
	ID      string `json:"id"`
	Status  string `json:"status"`
	AgentID string `json:"agent_id"`
	// WorkflowID is empty for a run of an agent.
	WorkflowID string          `json:"workflow_id"`
	ThreadID   *string         `json:"thread_id"`
	Output     json.RawMessage `json:"output"`
	Error      *runError       `json:"error"`
	TokensIn   int64           `json:"tokens_in"`
	TokensOut  int64           `json:"tokens_out"`
	CostUSD    float64         `json:"cost_usd"`
	CreatedAt  time.Time       `json:"created_at"`
}

type runError struct{ Code, Message string }

func runsCommand() *cobra.Command {
	cmd := cli.Group("runs", "start, list, read, follow and cancel runs")
	cmd.Long = idHelp
	cmd.AddCommand(runsListCommand(), onOne(runKind, "get", "one run with its steps", show), runsStartCommand(), runsWatchCommand(), runsCancelCommand(), runsArtifactsCommand())
	return cmd
}

func runsListCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "ls", Short: "list runs, newest first", Args: cobra.NoArgs}
	status := cmd.Flags().StringSlice("status", nil, "only runs of these statuses")
	origin := filledFlag(cmd, "origin", "", "only runs that this kind of thing started: api_key, user, trigger, embed_key or workflow")
	code := filledFlag(cmd, "code", "", "only runs that ended with this error code")
	since := filledFlag(cmd, "since", "", "only runs created at or after a time (RFC 3339), or not longer ago than a duration, as 24h")
	agent := agentFlag(cmd, "runs")
	workflow := filledFlag(cmd, "workflow", "", "only runs of this workflow, by its slug or id")
	trigger := filledFlag(cmd, "trigger", "", "only runs that this trigger started, by its id")
	if err := cmd.RegisterFlagCompletionFunc("workflow", completes(workflowKind, -1)); err != nil {
		panic(err) // the flag is defined above
	}
	if err := cmd.RegisterFlagCompletionFunc("trigger", completes(triggerKind, -1)); err != nil {
		panic(err) // the flag is defined above
	}
	cmd.MarkFlagsMutuallyExclusive("agent", "workflow")
	most := limitFlag(cmd, 25)
	cmd.RunE = cli.Does(func(cmd *cobra.Command, _ []string) error {
		q := url.Values{}
		if cmd.Flags().Changed("status") && len(*status) == 0 {
			return cli.WrongUse(errors.New("--status: must not be empty"))
		}
		for _, s := range *status {
			q.Add("status", s)
		}
		for param, text := range map[string]string{"origin": *origin, "code": *code} {
			if text != "" {
				q.Set(param, text)
			}
		}
		if *since != "" {
			at, err := timeOf(*since, time.Now())
			if err != nil {
				return err
			}
			q.Set("since", at.UTC().Format(time.RFC3339))
		}
		for _, by := range []struct {
			kind
			param, text string
		}{{agentKind, "agent_id", *agent}, {workflowKind, "workflow_id", *workflow}, {triggerKind, "trigger_id", *trigger}} {
			if by.text == "" {
				continue
			}
			c, err := newClient()
			if err != nil {
				return err
			}
			found, err := c.find(cmd.Context(), by.kind, by.text)
			if err != nil {
				return err
			}
			q.Set(by.param, found)
		}
		return listRuns(cmd, q, *most)
	})
	return cmd
}

// timeOf reads a time, or how long ago it was.
func timeOf(text string, now time.Time) (time.Time, error) {
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, cli.WrongUse(errors.New("--since: must be a time as 2026-03-02T09:00:00Z, or a duration as 24h"))
	}
	return at, nil
}

// listRuns prints the runs that a query finds.
func listRuns(cmd *cobra.Command, q url.Values, most int) error {
	items, next, err := listed(cmd, runKind.path, q, most)
	if err != nil {
		return err
	}
	agents, workflows := 0, 0
	for _, item := range items {
		var r RunView
		if err := json.Unmarshal(item, &r); err != nil {
			return err
		}
		if r.WorkflowID != "" {
			workflows++
		} else {
			agents++
		}
	}
	slugs, err := slugsOf(cmd, agentKind, agents)
	if err != nil {
		return err
	}
	flows, err := slugsOf(cmd, workflowKind, workflows)
	if err != nil {
		return err
	}
	return cli.PrintList(cmd, items, next, most, "runs", "RUN\tSTATUS\tAGENT OR WORKFLOW\tTOKENS\tUSD\tCREATED", func(w io.Writer, r *RunView) {
		of := slugs.of(r.AgentID)
		if r.WorkflowID != "" {
			of = "workflow:" + flows.of(r.WorkflowID)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d/%d\t%.4f\t%s\n", cli.ShortID(r.ID), cli.Visible(r.Status), of, r.TokensIn, r.TokensOut, r.CostUSD, r.CreatedAt.Format(time.RFC3339))
	})
}

// slugTable holds the slugs of agents or workflows by their ids.
type slugTable map[string]string

// of returns the slug of a thing, or its short id if it is not in the table.
func (t slugTable) of(id string) string {
	if slug := t[id]; slug != "" {
		return cli.Visible(slug)
	}
	return cli.ShortOr(&id)
}

// slugsOf reads the slugs of a kind for a list with n rows about it that people read.
func slugsOf(cmd *cobra.Command, k kind, n int) (slugTable, error) {
	if n == 0 || cli.WantsJSON(cmd) {
		return nil, nil
	}
	c, err := newClient()
	if err != nil {
		return nil, err
	}
	all, _, err := c.nameable(cmd.Context(), k, maxLooked)
	if err != nil {
		return nil, err
	}
	t := slugTable{}
	for _, a := range all {
		t[a.ID] = a.Slug
	}
	return t, nil
}

func runsStartCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "start AGENT [TEXT]",
		Short: "start a one-off run of a published agent, by its slug or id, and print the run's id",
		Long:  "The run's input is TEXT, or any JSON with --input. With --watch the run is followed to its end.",
		Args:  cobra.RangeArgs(1, 2), ValidArgsFunction: completes(agentKind, 1),
	}
	input := cmd.Flags().String("input", "", "the input as JSON: itself, @ and a file, or - for the input")
	follow := cmd.Flags().Bool("watch", false, "follow the run to its end")
	cmd.RunE = cli.Does(func(cmd *cobra.Command, args []string) error {
		body := map[string]any{}
		switch {
		case len(args) == 2 && *input != "":
			return cli.WrongUse(errors.New("--input: give it or TEXT"))
		case len(args) == 2:
			body["input"] = args[1]
		case *input != "":
			read, err := readJSON(cmd.Context(), cmd.InOrStdin(), *input)
			if err != nil {
				return cli.WrongUse(fmt.Errorf("--input: %w", err))
			}
			body["input"] = read
		}
		c, err := newClient()
		if err != nil {
			return err
		}
		agent, err := c.findAgent(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return start(cmd, c, agentKind.at(agent)+"/runs", body, *follow)
	})
	return cmd
}

// start starts a run by the route at path, and prints its id or follows it.
func start(cmd *cobra.Command, c *Client, path string, body any, follow bool) error {
	var made struct {
		RunID string `json:"run_id"`
	}
	if err := c.Call(cmd.Context(), http.MethodPost, path, body, &made); err != nil {
		return err
	}
	switch {
	case follow:
		return watch(cmd, c, made.RunID)
	case cli.WantsJSON(cmd):
		return cli.PrintJSON(cmd.OutOrStdout(), made)
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), cli.Visible(made.RunID))
	return err
}

func runsWatchCommand() *cobra.Command {
	return &cobra.Command{Use: "watch ID", Short: "follow a run from its first frame to its end",
		Long: "Of an agent's run it shows the text as it comes. Of a workflow's run it shows the nodes as they start and end: drawn in place on a terminal, a line for each event elsewhere.\n" +
			"NO_COLOR=1 draws without colors. With --json it prints the frames.",
		Args: cobra.ExactArgs(1), ValidArgsFunction: completes(runKind, 1), RunE: cli.Does(func(cmd *cobra.Command, args []string) error {
			c, err := newClient()
			if err != nil {
				return err
			}
			found, err := c.find(cmd.Context(), runKind, args[0])
			if err != nil {
				return err
			}
			return watch(cmd, c, found)
		})}
}

func runsCancelCommand() *cobra.Command {
	return onOne(runKind, "cancel", "end a run", func(cmd *cobra.Command, c *Client, path string) error {
		type ended struct {
			RunID  string `json:"run_id"`
			Status string `json:"status"`
		}
		return callAndShow(cmd, c, http.MethodPost, path+"/cancel", nil, func(w io.Writer, e *ended) error {
			_, err := fmt.Fprintln(w, cli.Visible(e.Status))
			return err
		})
	})
}

// watch shows a run: its frames, one JSON object a line, or the text of an agent as it comes,
// or the nodes of a workflow as they start and end.
func watch(cmd *cobra.Command, c *Client, run string) error {
	if cli.WantsJSON(cmd) {
		return follow(cmd, c, run, func(f Frame) error {
			return cli.PrintJSONLine(cmd.OutOrStdout(), f.Data)
		})
	}
	var d runDetail
	if err := c.fetch(cmd.Context(), runKind.at(run), &d); err != nil {
		return err
	}
	if d.Run.WorkflowID != "" {
		return watchWorkflow(cmd, c, &d)
	}
	return follow(cmd, c, run, (&display{w: cmd.OutOrStdout()}).frame)
}

// follow delivers the frames of a run from its first. Its error says also that the run failed.
func follow(cmd *cobra.Command, c *Client, run string, each func(Frame) error) error {
	var failed error
	err := c.Follow(cmd.Context(), url.PathEscape(run), "?replay=full", func(f Frame) error {
		if f.Type == "run.failed" {
			failed = runFailed(f)
		}
		return each(f)
	})
	if cmd.Context().Err() != nil {
		return goesOn(run)
	}
	return errors.Join(err, failed)
}

// goesOn returns the error of a command whose user interrupted it while it followed a run.
func goesOn(run string) error {
	return fmt.Errorf("%w; the run goes on: svc runs watch %s", errInterrupted, cli.ShortID(run))
}

func runFailed(f Frame) error {
	var e runError
	if err := json.Unmarshal(f.Data, &e); err != nil {
		return err
	}
	return &failedRun{e}
}

// failedRun is the error of a command that followed a run to its failure.
type failedRun struct{ runError }

func (e *failedRun) Error() string {
	return fmt.Sprintf("the run failed: %s: %s", cli.Visible(e.Code), cli.Visible(e.Message))
}

// Explain completes the error as --json shows it.
func (e *failedRun) Explain(r *cli.Reported) { r.Code = e.Code }

// display shows a run to a person: text as it arrives, all else as lines.
type display struct {
	w     io.Writer
	inRow bool // the cursor is not at the beginning of a line

	asked bool            // a model step has started
	step  int             // the last one
	acted bool            // a tool or a handoff came after it
	said  strings.Builder // its text
}

// modelStep notes that a model step has text or has started. Of two without a tool or a handoff
// between them the first was abandoned: its text is no part of the answer.
func (d *display) modelStep(idx int) error {
	if d.asked && d.step == idx && !d.acted {
		return nil
	}
	withdrawn := d.asked && !d.acted && d.said.Len() > 0
	d.forget()
	d.asked, d.step = true, idx
	if !withdrawn {
		return nil
	}
	return d.line("[that was withdrawn; the model is asked again]")
}

// forget makes d ready for another model step, or another run.
func (d *display) forget() {
	d.asked, d.acted = false, false
	d.said.Reset()
}

// answer shows the answer of a run, if it is not what the last model step has said.
func (d *display) answer(output json.RawMessage) error {
	var of struct{ Text string }
	if !d.asked || json.Unmarshal(output, &of) != nil || of.Text == "" || of.Text == d.said.String() {
		return nil
	}
	if d.said.Len() > 0 {
		if err := d.line("[the answer is]"); err != nil {
			return err
		}
	}
	return d.text(cli.Harmless(of.Text))
}

func (d *display) text(s string) error {
	if s == "" {
		return nil
	}
	d.inRow = !strings.HasSuffix(s, "\n")
	_, err := io.WriteString(d.w, s)
	return err
}

// line starts a new line.
func (d *display) line(format string, args ...any) error {
	if d.inRow {
		format = "\n" + format
	}
	return d.text(fmt.Sprintf(format+"\n", args...))
}

// howToApprove returns the command that decides an approval elsewhere.
func howToApprove(approval string) string {
	return "svc approvals approve " + cli.Visible(approval)
}

func (d *display) frame(f Frame) error {
	var v struct {
		Idx           int       `json:"idx"`
		Kind          string    `json:"kind"`
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
		Output        json.RawMessage
	}
	if err := json.Unmarshal(f.Data, &v); err != nil {
		return err
	}
	switch f.Type {
	case "run.started", "run.failed":
		d.forget()
	case "step.started":
		switch v.Kind {
		case "llm":
			return d.modelStep(v.Idx)
		case "retrieval":
		default:
			d.acted = true
		}
	case "llm.delta":
		if err := d.modelStep(v.Idx); err != nil {
			return err
		}
		d.said.WriteString(v.Text)
		return d.text(cli.Harmless(v.Text))
	case "tool.called":
		d.acted = true
		return d.line("[%s %s]", cli.Visible(v.Tool), cli.Visible(v.ArgsPreview))
	case "tool.result":
		outcome := "ok"
		if !v.OK {
			outcome = "failed"
		}
		return d.line("[%s %s]", outcome, cli.Visible(v.OutputPreview))
	case "approval.required":
		return d.line("[%s needs an approval until %s: %s]", cli.Visible(v.Tool), v.ExpiresAt.Format(time.RFC3339), howToApprove(v.ApprovalID))
	case "run.waiting":
		return d.line("[waiting for a decision]")
	case "run.resumed":
		return d.line("[approval %s: %s]", cli.Visible(v.ApprovalID), cli.Visible(v.Decision))
	case "handoff":
		d.acted = true
		return d.line("[%s hands over to %s]", cli.Visible(v.From), cli.Visible(v.To))
	case "run.completed":
		if err := d.answer(v.Output); err != nil {
			return err
		}
		d.forget()
		return d.line("[%d tokens in, %d out, %.4f USD]", v.TokensIn, v.TokensOut, v.CostUSD)
	}
	return nil
}
