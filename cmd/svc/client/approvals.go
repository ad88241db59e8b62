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
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mattn/go-isatty"
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

// decision is the body of a decision.
type decision struct {
	Action   string          `json:"action"`
	Args     json.RawMessage `json:"edited_args,omitempty"`
	Feedback string          `json:"feedback,omitempty"`
}

// Decided is the answer to a decision.
type Decided struct {
	Status string `json:"status"`
	SoFar  int    `json:"approvals_so_far"`
}

func (d Decided) String() string {
	if d.Status == "pending" {
		return fmt.Sprintf("pending, %d so far", d.SoFar)
	}
	return d.Status
}

// maxBulk is how many approvals one bulk decision takes (service.md, Limits).
const maxBulk = 200

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
	status := cmd.Flags().String("status", "pending", "only approvals of this status, or all")
	run := cmd.Flags().String("run", "", "only approvals of this run, by its id")
	agent := agentFlag(cmd, "approvals")
	risk := cmd.Flags().String("risk", "", "only approvals of this risk: low, medium, high or critical")
	tool := cmd.Flags().String("tool", "", "only approvals of this tool, by its qualified name")
	mine := cmd.Flags().Bool("mine", false, "only approvals that wait for your decision")
	sort := cmd.Flags().String("sort", "", "created (newest first), risk (highest first) or expires (soonest first)")
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

// decideCommand returns the command approve, reject or respond.
func decideCommand(action, short string, needsFeedback bool) *cobra.Command {
	cmd := &cobra.Command{Use: action + " ID...", Short: short, Args: cobra.MinimumNArgs(1), ValidArgsFunction: completes(pendingKind, -1)}
	feedback := cmd.Flags().String("feedback", "", "a comment, up to 4000 characters")
	yes := cmd.Flags().Bool("yes", false, "ask nothing; required without a terminal")
	if needsFeedback {
		cli.Required(cmd, "feedback")
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if needsFeedback && *feedback == "" {
			return errors.New("--feedback: is what the model hears, it must not be empty")
		}
		return cli.Does(func(cmd *cobra.Command, args []string) error {
			if !*yes && !isTerminal(cmd.InOrStdin()) {
				return errNoTerminal
			}
			c, err := newClient()
			if err != nil {
				return err
			}
			ids, err := c.findAll(cmd.Context(), approvalKind, args)
			if err != nil {
				return err
			}
			d := decision{Action: action, Feedback: *feedback}
			if len(ids) == 1 {
				if _, err := c.present(cmd, ids[0], true); err != nil {
					return err
				}
				if err := confirm(cmd, *yes, action+" this?"); err != nil {
					return err
				}
				return decideOne(cmd, c, ids[0], d)
			}
			return decideMany(cmd, c, ids, d, *yes)
		})(cmd, args)
	}
	return cmd
}

// errNoTerminal says that there is no terminal on which to confirm a decision.
var errNoTerminal = cli.WrongUse(errors.New("--yes: is required without a terminal"))

// confirm asks on the terminal, on standard error.
func confirm(cmd *cobra.Command, yes bool, question string) error {
	if yes {
		return nil
	}
	fmt.Fprint(cmd.ErrOrStderr(), question+" [y/N] ")
	answer, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if !isYes(answer) {
		return errors.New("nothing was sent")
	}
	return nil
}

// present shows on standard error what is being decided. If the approval is decided
// already, the error says how.
func (c *Client) present(cmd *cobra.Command, approval string, alone bool) (*ApprovalView, error) {
	a := new(ApprovalView)
	if err := c.fetch(cmd.Context(), approvalKind.at(approval), a); err != nil {
		return nil, err
	}
	if a.Status != "pending" {
		return nil, &APIError{Status: http.StatusConflict, Code: "ALREADY_DECIDED", Detail: a.outcome()}
	}
	lines, err := c.describe(cmd.Context(), a, alone)
	if err != nil {
		return nil, err
	}
	_, err = fmt.Fprintln(cmd.ErrOrStderr(), strings.Join(lines, "\n"))
	return a, err
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

func decideOne(cmd *cobra.Command, c *Client, approval string, d decision) error {
	got, err := c.decide(cmd.Context(), approval, d)
	if err != nil {
		return err
	}
	if cli.WantsJSON(cmd) {
		return cli.PrintJSON(cmd.OutOrStdout(), got)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s  %s\n", cli.ShortID(approval), got)
	return err
}

// decide sends one decision.
func (c *Client) decide(ctx context.Context, approval string, d decision) (*Decided, error) {
	got := new(Decided)
	return got, c.Call(ctx, http.MethodPost, approvalKind.at(approval)+"/decision", d, got)
}

// decideMany shows the approvals and sends bulk decisions. Each approval is decided on its
// own, so some may fail.
func decideMany(cmd *cobra.Command, c *Client, ids []string, d decision, yes bool) error {
	type refusal struct {
		Code   string `json:"code"`
		Detail string `json:"detail"`
	}
	type result struct {
		ID       string   `json:"id"`
		OK       bool     `json:"ok"`
		Terminal string   `json:"terminal,omitempty"`
		Error    *refusal `json:"error,omitempty"`
	}
	var all struct {
		Results []result `json:"results"`
	}
	var open []string
	for _, approval := range ids {
		_, err := c.present(cmd, approval, false)
		var refused *APIError
		switch {
		case err == nil:
			open = append(open, approval)
		case errors.As(err, &refused) && refused.Status < 500 && refused.Status != http.StatusTooManyRequests && refused.Status != http.StatusUnauthorized:
			all.Results = append(all.Results, result{ID: approval, Error: &refusal{refused.Code, cmp.Or(refused.Detail, refused.Title)}})
		default:
			return err // nothing was sent
		}
	}
	if len(open) > 0 {
		if err := confirm(cmd, yes, fmt.Sprintf("%s these %d?", d.Action, len(open))); err != nil {
			return err
		}
	}
	var stopped error
	for some := range slices.Chunk(open, maxBulk) {
		var got struct{ Results []result }
		if stopped = c.Call(cmd.Context(), "POST", "/v1/approvals/bulk-decision", struct {
			IDs []string `json:"ids"`
			decision
		}{some, d}, &got); stopped != nil {
			break
		}
		all.Results = append(all.Results, got.Results...)
	}
	failed := 0
	for _, r := range all.Results {
		if !r.OK {
			failed++
		}
	}
	if failed > 0 {
		stopped = errors.Join(fmt.Errorf("%d of %d could not be decided", failed, len(ids)), stopped)
	}
	if cli.WantsJSON(cmd) {
		return errors.Join(cli.PrintJSON(cmd.OutOrStdout(), all), stopped)
	}
	for _, r := range all.Results {
		said := "waits for further approvals"
		switch {
		case r.Error != nil:
			said = cli.Visible(r.Error.Code + ": " + r.Error.Detail)
		case !r.OK:
			said = "failed"
		case r.Terminal != "":
			said = cli.Visible(r.Terminal)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s  %s\n", cli.ShortID(r.ID), said)
	}
	return stopped
}

func approvalsEditCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "edit ID --args JSON|@FILE|-",
		Short: "approve a call with other arguments, or answer a human task",
		Long: "The arguments take the place of all that were asked for; only idempotency_key stays. The value \"[redacted]\" keeps what was asked for in its place.\n" +
			"Of a human task they are the fields of its form, which approvals get shows.\n" +
			"The call and the differences are shown and confirmed first; without a terminal --yes is required.",
		Args: cobra.ExactArgs(1), ValidArgsFunction: completes(pendingKind, 1),
	}
	text := cmd.Flags().String("args", "", "the arguments, a JSON object: itself, @ and a file, or - for the input")
	feedback := cmd.Flags().String("feedback", "", "a comment, up to 4000 characters")
	yes := cmd.Flags().Bool("yes", false, "ask nothing; required without a terminal, and with --args -")
	cli.Required(cmd, "args")
	cmd.RunE = cli.Does(func(cmd *cobra.Command, args []string) error {
		if !*yes && (*text == "-" || !isTerminal(cmd.InOrStdin())) {
			return errNoTerminal
		}
		edited, err := readArgs(cmd.InOrStdin(), *text)
		if err != nil {
			return cli.WrongUse(fmt.Errorf("--args: %w", err))
		}
		c, err := newClient()
		if err != nil {
			return err
		}
		found, err := c.find(cmd.Context(), approvalKind, args[0])
		if err != nil {
			return err
		}
		a, err := c.present(cmd, found, true)
		if err != nil {
			return err
		}
		before, _ := a.edited(len(a.Decisions))
		for _, line := range differences(before, edited) {
			fmt.Fprintln(cmd.ErrOrStderr(), "   ", line)
		}
		if err := confirm(cmd, *yes, "send this?"); err != nil {
			return err
		}
		return decideOne(cmd, c, found, decision{Action: "edit", Args: edited, Feedback: *feedback})
	})
	return cmd
}

// maxArgs is the greatest size of arguments, that of a request body.
const maxArgs = 2 << 20

// readArgs reads a JSON object: text itself, @ and the name of a file, or - for standard
// input.
func readArgs(in io.Reader, text string) (json.RawMessage, error) {
	b, err := readText(in, text)
	if err == nil {
		err = checkObject(b)
	}
	return bytes.TrimSpace(b), err
}

// readJSON reads any JSON value in the same way.
func readJSON(in io.Reader, text string) (json.RawMessage, error) {
	b, err := readText(in, text)
	if err == nil && !json.Valid(b) {
		err = errors.New("must be JSON")
	}
	return bytes.TrimSpace(b), err
}

func readText(in io.Reader, text string) ([]byte, error) {
	name, is := strings.CutPrefix(text, "@")
	switch {
	case is:
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	case text == "-":
		name = "the input"
	default:
		return []byte(text), nil
	}
	b, err := io.ReadAll(io.LimitReader(in, maxArgs+1))
	if err == nil && len(b) > maxArgs {
		err = fmt.Errorf("%s has more than %d bytes", cli.Visible(name), maxArgs)
	}
	return b, err
}

func checkObject(b []byte) error {
	if !json.Valid(b) || !bytes.HasPrefix(bytes.TrimSpace(b), []byte("{")) {
		return errors.New("must be a JSON object")
	}
	return nil
}

func isYes(answer string) bool {
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes"
}

// isTerminal reports whether r is a terminal.
func isTerminal(r io.Reader) bool {
	f, ok := r.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

// differences returns the changes from requested to edited, one line for each place. Both
// are valid JSON. No edit changes the idempotency_key.
func differences(requested, edited json.RawMessage) []string {
	before, after := parsed(requested), parsed(edited)
	for _, v := range []any{before, after} {
		if args, ok := v.(map[string]any); ok {
			delete(args, "idempotency_key")
		}
	}
	lines := differ(nil, "", before, after)
	if len(lines) == 0 {
		return []string{"(the same arguments)"}
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

// watchPause is the time between two polls of approvals watch.
const watchPause = 2 * time.Second

func approvalsWatchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "watch [ID]",
		Short: "show approvals as they are requested and decided; with an ID, wait until that one is decided",
		Args:  cobra.MaximumNArgs(1), ValidArgsFunction: completes(pendingKind, 1),
	}
	cmd.RunE = cli.Does(func(cmd *cobra.Command, args []string) error {
		c, err := newClient()
		if err != nil {
			return err
		}
		only := ""
		if len(args) == 1 {
			if only, err = c.find(cmd.Context(), approvalKind, args[0]); err != nil {
				return err
			}
		}
		w := &approvalWatch{cmd: cmd, c: c, only: only, open: map[string]bool{}}
		err = w.follow(cmd.Context())
		if only == "" && cmd.Context().Err() != nil {
			return nil // interrupted by the user
		}
		return err
	})
	return cmd
}

// approvalWatch polls the pending approvals.
type approvalWatch struct {
	cmd  *cobra.Command
	c    *Client
	only string          // the one to wait for; empty: all
	open map[string]bool // shown and not decided yet
}

// follow polls until the one approval is decided, or for ever. It waits up to a minute for a
// service that does not answer.
func (w *approvalWatch) follow(ctx context.Context) error {
	lost := time.Time{}
	for {
		done, err := w.look(ctx)
		var refused *APIError
		switch {
		case done:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			lost = time.Time{}
		case errors.As(err, &refused) && refused.Status < 500 && refused.Status != http.StatusTooManyRequests:
			return err
		case lost.IsZero():
			lost = time.Now()
		case time.Since(lost) > cmp.Or(w.c.patience, time.Minute):
			return fmt.Errorf("the service was lost: %w", err)
		}
		if err := wait(ctx, watchPause); err != nil {
			return err
		}
	}
}

// look polls once and shows the changes.
func (w *approvalWatch) look(ctx context.Context) (done bool, err error) {
	if w.only != "" {
		a, err := w.one(ctx, w.only)
		if err != nil || a.Status == "pending" {
			return false, err
		}
		return true, w.show(ctx, a)
	}
	items, _, err := w.c.Pages(ctx, approvalKind.path, url.Values{"status": {"pending"}}, maxLooked)
	if err != nil {
		return false, err
	}
	still := map[string]bool{}
	for _, item := range slices.Backward(items) { // oldest first
		var a watched
		if err := a.read(item); err != nil {
			return false, err
		}
		if still[a.ID] = true; w.open[a.ID] {
			continue
		}
		if err := w.show(ctx, &a); err != nil {
			return false, err
		}
		w.open[a.ID] = true
	}
	for id := range w.open {
		if still[id] {
			continue
		}
		a, err := w.one(ctx, id)
		var gone *APIError
		if errors.As(err, &gone) && (gone.Status == http.StatusNotFound || gone.Status == http.StatusForbidden) {
			delete(w.open, id) // its run was erased, or it escalated to a higher role
			continue
		}
		if err != nil {
			return false, err
		}
		if err := w.show(ctx, a); err != nil {
			return false, err
		}
		delete(w.open, id)
	}
	return false, nil
}

// watched is an approval with its JSON.
type watched struct {
	ApprovalView
	raw json.RawMessage
}

func (a *watched) read(raw json.RawMessage) error {
	a.raw = raw
	return json.Unmarshal(raw, &a.ApprovalView)
}

func (w *approvalWatch) one(ctx context.Context, id string) (*watched, error) {
	var raw json.RawMessage
	if err := w.c.fetch(ctx, approvalKind.at(id), &raw); err != nil {
		return nil, err
	}
	a := new(watched)
	return a, a.read(raw)
}

func (w *approvalWatch) show(ctx context.Context, a *watched) error {
	out := w.cmd.OutOrStdout()
	if cli.WantsJSON(w.cmd) {
		_, err := fmt.Fprintln(out, compact(a.raw))
		return err
	}
	if a.Status != "pending" {
		_, err := fmt.Fprintln(out, a.outcome())
		return err
	}
	lines, err := w.c.describe(ctx, &a.ApprovalView, false)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, strings.Join(lines, "\n"))
	return err
}

// parsed reads JSON and keeps numbers as they are written. Invalid JSON becomes a string.
func parsed(raw json.RawMessage) any {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return string(raw)
	}
	return v
}

func differ(lines []string, path string, before, after any) []string {
	switch b := before.(type) {
	case map[string]any:
		a, ok := after.(map[string]any)
		if !ok {
			break
		}
		var keys []string
		for k := range b {
			keys = append(keys, k)
		}
		for k := range a {
			if _, both := b[k]; !both {
				keys = append(keys, k)
			}
		}
		slices.Sort(keys)
		for _, k := range keys {
			at := strings.TrimPrefix(path+"."+cli.Visible(k), ".")
			was, had := b[k]
			is, has := a[k]
			switch {
			case !has:
				lines = append(lines, "- "+at+": "+inline(was))
			case !had:
				lines = append(lines, "+ "+at+": "+inline(is))
			default:
				lines = differ(lines, at, was, is)
			}
		}
		return lines
	case []any:
		a, ok := after.([]any)
		if !ok {
			break
		}
		for i := range max(len(b), len(a)) {
			at := path + "[" + strconv.Itoa(i) + "]"
			switch {
			case i >= len(a):
				lines = append(lines, "- "+at+": "+inline(b[i]))
			case i >= len(b):
				lines = append(lines, "+ "+at+": "+inline(a[i]))
			default:
				lines = differ(lines, at, b[i], a[i])
			}
		}
		return lines
	}
	was, is := inline(before), inline(after)
	if was == is {
		return lines
	}
	if path == "" {
		path = "(all)"
	}
	return append(lines, "~ "+path+": "+was+" -> "+is)
}

// inline returns a value as one line of JSON.
func inline(v any) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err.Error()
	}
	return cli.Visible(strings.TrimSuffix(b.String(), "\n"))
}

// compact returns a JSON document on one line.
func compact(raw json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return string(raw)
	}
	return b.String()
}
