package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
)

// approvalView is an approval as the API shows it.
type approvalView struct {
	ID              string `json:"id"`
	RunID           string `json:"run_id"`
	Status          string `json:"status"`
	Risk            string `json:"risk"`
	AssigneeRole    string `json:"assignee_role"`
	Required        int    `json:"required_approvals"`
	SoFar           int    `json:"approvals_so_far"`
	RequestedAction struct {
		Tool string          `json:"tool"`
		Args json.RawMessage `json:"args"`
	} `json:"requested_action"`
	Reasoning string `json:"reasoning_summary"`
	Decisions []struct {
		Principal string  `json:"principal"`
		Action    string  `json:"action"`
		Feedback  *string `json:"feedback"`
	} `json:"decisions"`
	ExpiresAt time.Time `json:"expires_at"`
}

// decision is the body of a decision.
type decision struct {
	Action   string          `json:"action"`
	Args     json.RawMessage `json:"edited_args,omitempty"`
	Feedback string          `json:"feedback,omitempty"`
}

// decided answers it.
type decided struct {
	Status string `json:"status"`
	SoFar  int    `json:"approvals_so_far"`
}

func (d decided) String() string {
	if d.Status == "pending" {
		return fmt.Sprintf("pending, %d so far", d.SoFar)
	}
	return d.Status
}

// maxBulk is how many approvals one bulk decision takes (service.md, Limits).
const maxBulk = 200

func approvalsCommand() *cobra.Command {
	cmd := group("approvals", "list and decide what waits for a person")
	cmd.Long = "An ID may be the beginning of an id, as long as one pending approval begins with it."
	cmd.AddCommand(approvalsListCommand(),
		decideCommand("approve", "approve calls as they were asked for", false),
		decideCommand("reject", "refuse calls; the model hears the feedback", false),
		decideCommand("respond", "answer instead of calling: the feedback becomes a message of the user", true),
		approvalsEditCommand())
	return cmd
}

func approvalsListCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "ls", Short: "list approvals, newest first", Args: cobra.NoArgs}
	status := cmd.Flags().String("status", "pending", "only approvals of this status, or all")
	run := cmd.Flags().String("run", "", "only approvals of this run id")
	agent := cmd.Flags().String("agent", "", "only approvals of this agent, by its slug or id")
	risk := cmd.Flags().String("risk", "", "only approvals of this risk: low, medium, high or critical")
	most := cmd.Flags().Int("limit", 100, "how many at most")
	cmd.RunE = does(func(cmd *cobra.Command, _ []string) error {
		c, err := newClient()
		if err != nil {
			return err
		}
		q := url.Values{}
		if *status != "all" {
			q.Set("status", *status)
		}
		if *run != "" {
			q.Set("run_id", *run)
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
		if *most < 1 {
			return misuse{errors.New("--limit must be at least 1")}
		}
		items, more, err := c.pages(cmd.Context(), "/v1/approvals", q, *most)
		if err != nil {
			return err
		}
		if wantsJSON(cmd) {
			return printJSON(cmd.OutOrStdout(), map[string]any{"items": items})
		}
		views := make([]approvalView, len(items))
		for i, item := range items {
			if err := json.Unmarshal(item, &views[i]); err != nil {
				return err
			}
		}
		if err := printApprovals(cmd.OutOrStdout(), views, time.Now()); err != nil || !more {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "there are more: --limit %d\n", 10**most)
		return err
	})
	return cmd
}

// printApprovals prints a line of columns for each approval, and below it what a
// person decides by.
func printApprovals(w io.Writer, items []approvalView, now time.Time) error {
	rows := [][]string{{"APPROVAL", "RISK", "LEFT", "TOOL", "ASSIGNEE", "LEDGER"}}
	for _, a := range items {
		left := a.Status
		if a.Status == "pending" {
			left = timeLeft(a.ExpiresAt.Sub(now))
		}
		rows = append(rows, []string{a.ID, a.Risk, left, visible(a.RequestedAction.Tool), a.AssigneeRole, a.ledger()})
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
		fmt.Fprintln(out, "    args     ", shorten(visible(compact(a.RequestedAction.Args)), 200))
		if a.Reasoning != "" {
			fmt.Fprintln(out, "    reasoning", shorten(visible(a.Reasoning), 200))
		}
		for _, d := range a.Decisions {
			fmt.Fprintln(out, "    decided  ", visible(d.Principal)+": "+d.Action+feedbackOf(d.Feedback))
		}
	}
	return out.Flush()
}

func (a *approvalView) ledger() string { return fmt.Sprintf("%d/%d", a.SoFar, a.Required) }

func feedbackOf(text *string) string {
	if text == nil || *text == "" {
		return ""
	}
	return ", " + shorten(visible(*text), 120)
}

// timeLeft is a duration in the one or two units that matter.
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

// decideCommand is approve, reject or respond.
func decideCommand(action, short string, needsFeedback bool) *cobra.Command {
	cmd := &cobra.Command{Use: action + " ID...", Short: short, Args: cobra.MinimumNArgs(1)}
	feedback := cmd.Flags().String("feedback", "", "a word about it, up to 4000 characters")
	if needsFeedback {
		required(cmd, "feedback")
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if needsFeedback && *feedback == "" {
			return errors.New("--feedback: is what the model hears, it must not be empty")
		}
		return does(func(cmd *cobra.Command, args []string) error {
			c, err := newClient()
			if err != nil {
				return err
			}
			ids, err := c.findApprovals(cmd.Context(), args)
			if err != nil {
				return err
			}
			d := decision{Action: action, Feedback: *feedback}
			if len(ids) == 1 {
				return decideOne(cmd, c, ids[0], d)
			}
			return decideMany(cmd, c, ids, d)
		})(cmd, args)
	}
	return cmd
}

func decideOne(cmd *cobra.Command, c *client, approval string, d decision) error {
	got, err := c.decide(cmd.Context(), approval, d)
	if err != nil {
		return err
	}
	if wantsJSON(cmd) {
		return printJSON(cmd.OutOrStdout(), got)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s  %s\n", approval, got)
	return err
}

// decide sends one decision.
func (c *client) decide(ctx context.Context, approval string, d decision) (*decided, error) {
	got := new(decided)
	return got, c.call(ctx, "POST", "/v1/approvals/"+url.PathEscape(approval)+"/decision", d, got)
}

// decideMany sends bulk decisions. Each approval is decided by itself: some may
// fail where others do not.
func decideMany(cmd *cobra.Command, c *client, ids []string, d decision) error {
	type result struct {
		ID       string `json:"id"`
		OK       bool   `json:"ok"`
		Terminal string `json:"terminal,omitempty"`
		Error    *struct {
			Code   string `json:"code"`
			Detail string `json:"detail"`
		} `json:"error,omitempty"`
	}
	var all struct {
		Results []result `json:"results"`
	}
	var stopped error
	for some := range slices.Chunk(ids, maxBulk) {
		var got struct{ Results []result }
		if stopped = c.call(cmd.Context(), "POST", "/v1/approvals/bulk-decision", struct {
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
	if wantsJSON(cmd) {
		return errors.Join(printJSON(cmd.OutOrStdout(), all), stopped)
	}
	for _, r := range all.Results {
		said := "waits for further approvals"
		switch {
		case r.Error != nil:
			said = visible(r.Error.Code + ": " + r.Error.Detail)
		case !r.OK:
			said = "failed"
		case r.Terminal != "":
			said = visible(r.Terminal)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s  %s\n", r.ID, said)
	}
	return stopped
}

// findApprovals takes ids as they are and looks up what the others are the
// beginning of, among the pending approvals.
func (c *client) findApprovals(ctx context.Context, args []string) ([]string, error) {
	var pending []string
	var ids []string
	for _, arg := range args {
		found := strings.ToLower(arg)
		if !isID(found) {
			if pending == nil {
				var list struct{ Items []struct{ ID string } }
				if err := c.call(ctx, "GET", "/v1/approvals?status=pending", nil, &list); err != nil {
					return nil, err
				}
				pending = []string{}
				for _, a := range list.Items {
					pending = append(pending, a.ID)
				}
			}
			var err error
			if found, err = onlyID(arg, "pending approval", pending); err != nil {
				return nil, err
			}
		}
		if !slices.Contains(ids, found) {
			ids = append(ids, found)
		}
	}
	return ids, nil
}

func approvalsEditCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "edit ID --args JSON|@FILE|-",
		Short: "approve a call with other arguments",
		Long: "The arguments take the place of all that were asked for; only idempotency_key stays. The value \"[redacted]\" keeps what was asked for in its place.\n" +
			"On a terminal the differences are shown and confirmed first.",
		Args: cobra.ExactArgs(1),
	}
	text := cmd.Flags().String("args", "", "the arguments, a JSON object: itself, @ and a file, or - for the input")
	feedback := cmd.Flags().String("feedback", "", "a word about it, up to 4000 characters")
	yes := cmd.Flags().Bool("yes", false, "ask nothing")
	required(cmd, "args")
	cmd.RunE = does(func(cmd *cobra.Command, args []string) error {
		edited, err := readArgs(cmd.InOrStdin(), *text)
		if err != nil {
			return misuse{fmt.Errorf("--args: %w", err)}
		}
		c, err := newClient()
		if err != nil {
			return err
		}
		ids, err := c.findApprovals(cmd.Context(), args)
		if err != nil {
			return err
		}
		if !*yes && *text != "-" && isTerminal(cmd.InOrStdin()) {
			if err := confirmEdit(cmd, c, ids[0], edited); err != nil {
				return err
			}
		}
		return decideOne(cmd, c, ids[0], decision{Action: "edit", Args: edited, Feedback: *feedback})
	})
	return cmd
}

// maxArgs bounds what is read as arguments: no request body is longer.
const maxArgs = 2 << 20

func readArgs(in io.Reader, text string) (json.RawMessage, error) {
	b := []byte(text)
	if file, ok := strings.CutPrefix(text, "@"); ok {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in, text = f, "-"
	}
	if text == "-" {
		var err error
		if b, err = io.ReadAll(io.LimitReader(in, maxArgs)); err != nil {
			return nil, err
		}
	}
	if err := checkObject(b); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(b), nil
}

func checkObject(b []byte) error {
	if !json.Valid(b) || !bytes.HasPrefix(bytes.TrimSpace(b), []byte("{")) {
		return errors.New("must be a JSON object")
	}
	return nil
}

// confirmEdit asks on the terminal, beside the output.
func confirmEdit(cmd *cobra.Command, c *client, approval string, edited json.RawMessage) error {
	var a approvalView
	if err := c.call(cmd.Context(), "GET", "/v1/approvals/"+url.PathEscape(approval), nil, &a); err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s, approval %s\n", visible(a.RequestedAction.Tool), a.ID)
	for _, line := range differences(a.RequestedAction.Args, edited) {
		fmt.Fprintln(cmd.ErrOrStderr(), " ", line)
	}
	fmt.Fprint(cmd.ErrOrStderr(), "send this? [y/N] ")
	answer, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if !isYes(answer) {
		return errors.New("nothing was sent")
	}
	return nil
}

func isYes(answer string) bool {
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes"
}

// isTerminal reports whether a person may be sitting at r.
func isTerminal(r io.Reader) bool {
	f, ok := r.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

// differences are what edited changes of requested, one line for each place.
// Both are valid JSON. The idempotency_key stays what it is, whatever an edit
// says.
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

// parsed reads JSON and keeps numbers as they are written; what is no JSON is
// shown as text.
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
			at := strings.TrimPrefix(path+"."+visible(k), ".")
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

// inline is a value as one line of JSON.
func inline(v any) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err.Error()
	}
	return visible(strings.TrimSuffix(b.String(), "\n"))
}

// compact is a JSON document on one line.
func compact(raw json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return string(raw)
	}
	return b.String()
}
