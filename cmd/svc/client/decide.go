package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
	"agentsvc/schemas/jsontext"
)

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
			return errors.New("--feedback: must not be empty: it is the answer that the model gets")
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
		edited, err := readArgs(cmd.Context(), cmd.InOrStdin(), *text)
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

// inline returns a value as one line of JSON.
func inline(v any) string {
	b, err := jsontext.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return cli.Visible(string(b))
}
