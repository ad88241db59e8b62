package client

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
	"agentsvc/schemas/flow/scan"
	"agentsvc/schemas/tool"
)

// ApprovalView is an approval as the API shows it.
type ApprovalView struct {
	ID              string  `json:"id"`
	RunID           string  `json:"run_id"`
	AgentID         *string `json:"agent_id"`
	Status          string  `json:"status"`
	Risk            string  `json:"risk"`
	AssigneeRole    string  `json:"assignee_role"`
	Required        int     `json:"required_approvals"`
	SoFar           int     `json:"approvals_so_far"`
	RequestedAction struct {
		Tool   string          `json:"tool"`
		Args   json.RawMessage `json:"args"`
		Schema json.RawMessage `json:"schema"`
	} `json:"requested_action"`
	Reasoning string `json:"reasoning_summary"`
	Policy    struct {
		Name string `json:"name"`
		Kind string `json:"kind"`
	} `json:"policy"`
	Decisions []struct {
		Principal string          `json:"principal"`
		Action    string          `json:"action"`
		Feedback  *string         `json:"feedback"`
		Edited    json.RawMessage `json:"edited_args"`
	} `json:"decisions"`
	ExpiresAt time.Time  `json:"expires_at"`
	DecidedAt *time.Time `json:"decided_at"`
}

func approvalsCommand() *cobra.Command {
	cmd := cli.Group("approvals", "list and decide approvals")
	cmd.Long = idHelp + "\nA decision shows the tool, its arguments and the asker, and asks before it is sent; without a terminal it needs --yes."
	cmd.AddCommand(approvalsListCommand(), approvalsGetCommand(), approvalsWatchCommand(),
		decideCommand("approve", "approve calls as they were asked for", false),
		decideCommand("reject", "refuse calls; the model hears the feedback", false),
		decideCommand("respond", "answer instead of calling: the feedback becomes a message of the user", true),
		approvalsEditCommand())
	return cmd
}

func approvalsListCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "ls", Short: "list approvals", Args: cobra.NoArgs}
	status := filledFlag(cmd, "status", "pending", "only approvals of this status, or all")
	run := filledFlag(cmd, "run", "", "only approvals of this run, by its id")
	agent := agentFlag(cmd, "approvals")
	risk := filledFlag(cmd, "risk", "", "only approvals of this risk: low, medium, high or critical")
	tool := filledFlag(cmd, "tool", "", "only approvals of this tool, by its qualified name")
	mine := cmd.Flags().Bool("mine", false, "only approvals that wait for your decision")
	sort := filledFlag(cmd, "sort", "", "created (newest first), risk (highest first) or expires (soonest first)")
	most := limitFlag(cmd, 100)
	cmd.RunE = cli.Does(func(cmd *cobra.Command, _ []string) error {
		c, err := newClient()
		if err != nil {
			return err
		}
		q := url.Values{}
		for param, text := range map[string]string{"tool": *tool, "sort": *sort} {
			if text != "" {
				q.Set(param, text)
			}
		}
		if *mine {
			q.Set("mine", "true")
		}
		if *status != "all" {
			q.Set("status", *status)
		}
		if *run != "" {
			found, err := c.find(cmd.Context(), runKind, *run)
			if err != nil {
				return err
			}
			q.Set("run_id", found)
		}
		if *agent != "" {
			found, err := c.findAgent(cmd.Context(), *agent)
			if err != nil {
				return err
			}
			q.Set("agent_id", found)
		}
		if *risk != "" {
			q.Set("risk", *risk)
		}
		if err := checkLimit(*most); err != nil {
			return err
		}
		items, next, err := c.Pages(cmd.Context(), "/v1/approvals", q, *most)
		if err != nil {
			return err
		}
		if cli.WantsJSON(cmd) {
			return cli.PrintJSON(cmd.OutOrStdout(), cli.JSONList{Items: items, Next: next})
		}
		if len(items) == 0 {
			return cli.PrintNone(cmd, map[bool]string{true: "pending approvals", false: "approvals"}[*status == "pending"])
		}
		views := make([]ApprovalView, len(items))
		for i, item := range items {
			if err := json.Unmarshal(item, &views[i]); err != nil {
				return err
			}
		}
		if err := printApprovals(cmd.OutOrStdout(), views, time.Now()); err != nil || next == nil {
			return err
		}
		return cli.PrintMore(cmd, *most)
	})
	return cmd
}

// printApprovals prints a row for each approval, and below it what a person needs to
// decide.
func printApprovals(w io.Writer, items []ApprovalView, now time.Time) error {
	rows := [][]string{{"APPROVAL", "RISK", "LEFT", "TOOL", "ASSIGNEE", "LEDGER"}}
	for _, a := range items {
		left := cli.Visible(a.Status)
		if a.Status == "pending" {
			left = timeLeft(a.ExpiresAt.Sub(now))
		}
		rows = append(rows, []string{cli.ShortID(a.ID), cli.Visible(a.Risk), left, cli.Visible(a.RequestedAction.Tool), cli.Visible(a.AssigneeRole), a.ledger()})
	}
	width := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	out := bufio.NewWriter(w)
	for i, row := range rows {
		var line strings.Builder
		for j, cell := range row {
			line.WriteString(cell + strings.Repeat(" ", width[j]-utf8.RuneCountInString(cell)+2))
		}
		fmt.Fprintln(out, strings.TrimRight(line.String(), " "))
		if i == 0 {
			continue
		}
		a := items[i-1]
		asked, answer := a.args()
		fmt.Fprintln(out, "    args     ", cli.Shorten(cli.Visible(compact(asked)), 200))
		if answer != nil {
			fmt.Fprintln(out, "    answer   ", cli.Shorten(cli.Visible(compact(answer)), 200))
		}
		if a.Reasoning != "" {
			fmt.Fprintln(out, "    reasoning", cli.Shorten(cli.Visible(a.Reasoning), 200))
		}
		for _, line := range a.ledgerLines("    decided   ") {
			fmt.Fprintln(out, cli.Shorten(line, 300))
		}
	}
	return out.Flush()
}

func (a *ApprovalView) ledger() string { return fmt.Sprintf("%d/%d", a.SoFar, a.Required) }

func feedbackOf(text *string) string {
	if text == nil || *text == "" {
		return ""
	}
	return ", " + cli.Shorten(cli.Visible(*text), 120)
}

// timeLeft returns a duration in its one or two largest units.
func timeLeft(d time.Duration) string {
	switch {
	case d <= 0:
		return "overdue"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd", int(d.Hours())/24)
}

// outcome returns how an approval was decided, in words.
func (a *ApprovalView) outcome() string {
	s := fmt.Sprintf("the approval %s of %s is decided: %s", cli.ShortID(a.ID), cli.Visible(a.RequestedAction.Tool), cli.Visible(a.Status))
	if a.DecidedAt != nil {
		s += " at " + a.DecidedAt.UTC().Format(time.RFC3339)
	}
	for _, d := range a.Decisions {
		s += fmt.Sprintf("; %s by %s%s", cli.Visible(d.Action), cli.Visible(d.Principal), feedbackOf(d.Feedback))
	}
	return s
}

// describe returns what a person needs to decide: the tool, its arguments, the agent that
// asks, and why. It looks up who started the run only if whole is set.
func (c *Client) describe(ctx context.Context, a *ApprovalView, whole bool) ([]string, error) {
	lines := []string{fmt.Sprintf("%s  %s, %s risk, %s of role %s so far, %s", cli.ShortID(a.ID), cli.Visible(a.RequestedAction.Tool), cli.Visible(a.Risk), a.ledger(), cli.Visible(a.AssigneeRole), a.standing(time.Now()))}
	lines = append(lines, a.argLines()...)
	lines = append(lines, a.formLines()...)
	asker := "a workflow"
	if a.AgentID != nil {
		var got struct{ Agent struct{ Slug, Name string } }
		err := c.fetch(ctx, agentKind.at(*a.AgentID), &got)
		var gone *APIError
		switch {
		case err == nil:
			asker = "the agent " + cli.Visible(got.Agent.Slug)
		case errors.As(err, &gone) && gone.Status < 500: // archived, or not readable for this caller
			asker = "the agent " + cli.ShortID(*a.AgentID)
		default:
			return nil, err
		}
	}
	asker += " in run " + cli.ShortID(a.RunID)
	if whole {
		var got struct {
			Run struct {
				Origin struct {
					Kind string  `json:"kind"`
					ID   *string `json:"id"`
				} `json:"origin"`
				EndUserID *string `json:"end_user_id"`
			}
		}
		err := c.fetch(ctx, runKind.at(a.RunID), &got)
		var gone *APIError
		if err != nil && !(errors.As(err, &gone) && gone.Status < 500) {
			return nil, err
		}
		if from := got.Run.Origin; from.Kind != "" {
			asker += ", begun by " + cli.Visible(strings.ReplaceAll(from.Kind, "_", " ")) + " " + cli.ShortOr(from.ID)
		}
		if got.Run.EndUserID != nil {
			asker += ", for end user " + cli.ShortID(*got.Run.EndUserID)
		}
	}
	lines = append(lines, "    asked by  "+asker)
	if a.Reasoning != "" {
		lines = append(lines, "    because   "+cli.Visible(a.Reasoning))
	}
	if a.Policy.Name != "" {
		lines = append(lines, "    policy    "+cli.Visible(a.Policy.Name))
	}
	return append(lines, a.ledgerLines("    decided   ")...), nil
}

// ledgerLines returns the decisions so far, one a line behind head, each with what it changed of
// the arguments.
func (a *ApprovalView) ledgerLines(head string) (lines []string) {
	for i, d := range a.Decisions {
		lines = append(lines, head+cli.Visible(d.Principal)+": "+cli.Visible(d.Action)+feedbackOf(d.Feedback))
		if d.Action != "edit" {
			continue
		}
		before, _ := a.edited(i)
		after, _ := a.edited(i + 1)
		for _, line := range differences(before, after) {
			lines = append(lines, strings.Repeat(" ", len(head))+line)
		}
	}
	return lines
}

// edited returns the arguments after the first n decisions: those that the last edit among them
// sent, with the key of the call, else those that an edit would replace. The answer of a human
// task is empty before its first edit.
func (a *ApprovalView) edited(n int) (args json.RawMessage, is bool) {
	for _, d := range slices.Backward(a.Decisions[:n]) {
		if d.Action == "edit" {
			return tool.KeepKey(d.Edited, a.RequestedAction.Args), true
		}
	}
	if a.RequestedAction.Tool == humanTask {
		return json.RawMessage("{}"), false
	}
	return a.RequestedAction.Args, false
}

// args returns the arguments that run if the approval is approved. Of a human task they are what
// its person is shown, and answer is what an edit answered, nil before that.
func (a *ApprovalView) args() (args, answer json.RawMessage) {
	now, edited := a.edited(len(a.Decisions))
	switch {
	case a.RequestedAction.Tool != humanTask:
		return now, nil
	case edited:
		return a.RequestedAction.Args, now
	}
	return a.RequestedAction.Args, nil
}

// standing returns the time left, or how the approval ended.
func (a *ApprovalView) standing(now time.Time) string {
	if a.Status != "pending" {
		return cli.Visible(a.Status)
	}
	return timeLeft(a.ExpiresAt.Sub(now)) + " left"
}

// argLines returns the arguments that would run, and an answer, indented, with escapes for
// characters that would hide something.
func (a *ApprovalView) argLines() (lines []string) {
	args, answer := a.args()
	lines = indented(args)
	if answer != nil {
		lines = append(append(lines, "    answer"), indented(answer)...)
	}
	return lines
}

func indented(raw json.RawMessage) (lines []string) {
	var text bytes.Buffer
	if json.Indent(&text, raw, "    ", "  ") != nil {
		text.Reset()
		text.Write(raw)
	}
	for line := range strings.Lines("    " + text.String()) {
		lines = append(lines, cli.Visible(strings.TrimSuffix(line, "\n")))
	}
	return lines
}

// humanTask is the tool of the approvals that ask for an answer, not for arguments.
const humanTask = "workflow:human_task"

// formLines returns the fields of the form that edited arguments answer, one line for each.
func (a *ApprovalView) formLines() (lines []string) {
	if a.RequestedAction.Tool != humanTask || len(a.RequestedAction.Schema) == 0 || string(a.RequestedAction.Schema) == "null" {
		return nil
	}
	var form struct {
		Properties json.RawMessage `json:"properties"`
		Required   []string        `json:"required"`
	}
	_ = json.Unmarshal(a.RequestedAction.Schema, &form) // a form without fields is shown whole
	head := "    form      "
	add := func(line string) {
		lines = append(lines, head+line)
		head = strings.Repeat(" ", len(head))
	}
	if scan.KindOf(form.Properties) == scan.Object {
		scan.Members(form.Properties, func(name string, field []byte) bool {
			var is struct {
				Type        json.RawMessage `json:"type"`
				Enum        json.RawMessage `json:"enum"`
				Title       string          `json:"title"`
				Description string          `json:"description"`
			}
			_ = json.Unmarshal(field, &is)
			said := []string{}
			if len(is.Type) > 0 {
				said = append(said, strings.Trim(compact(is.Type), `"`))
			}
			if slices.Contains(form.Required, name) {
				said = append(said, "required")
			}
			if len(is.Enum) > 0 {
				said = append(said, "one of "+compact(is.Enum))
			}
			line := name
			if len(said) > 0 {
				line += ": " + strings.Join(said, ", ")
			}
			if about := cmp.Or(is.Description, is.Title); about != "" {
				line += " (" + about + ")"
			}
			add(cli.Shorten(cli.Visible(line), 200))
			return true
		})
	}
	if len(lines) == 0 {
		add(cli.Shorten(cli.Visible(compact(a.RequestedAction.Schema)), 200))
	}
	return lines
}

func approvalsGetCommand() *cobra.Command {
	return onOne(approvalKind, "get", "one approval, decided or not", func(cmd *cobra.Command, c *Client, path string) error {
		var raw json.RawMessage
		if err := c.Call(cmd.Context(), http.MethodGet, path, nil, &raw); err != nil {
			return err
		}
		if cli.WantsJSON(cmd) {
			return cli.PrintJSON(cmd.OutOrStdout(), raw)
		}
		var a ApprovalView
		if err := json.Unmarshal(raw, &a); err != nil {
			return err
		}
		lines, err := c.describe(cmd.Context(), &a, true)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), strings.Join(lines, "\n"))
		return err
	})
}

// compact returns a JSON document on one line.
func compact(raw json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return string(raw)
	}
	return b.String()
}
