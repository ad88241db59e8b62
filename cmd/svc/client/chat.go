package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
)

func chatCommand() *cobra.Command {
	var evidence bool
	var deliverable string
	cmd := &cobra.Command{
		Use:   "chat AGENT",
		Short: "talk to a published agent, by its slug or id, on a new thread",
		Long: "Each line of the input is one message; the answer streams as it is written. An empty line or the end of the input ends the talk.\n" +
			"On a terminal, calls that wait for an approval can be decided in place. In a pipe the exit code is 1 if an answer failed.\n" +
			"With --json the first line has the type thread and the thread_id, and each further one is the JSON of a frame.",
		Args: cobra.ExactArgs(1), ValidArgsFunction: completes(agentKind, 1),
		RunE: cli.Does(func(cmd *cobra.Command, args []string) error {
			c, err := newClient()
			if err != nil {
				return err
			}
			options := map[string]any{}
			if evidence {
				options["evidence"] = true
			}
			if deliverable != "" {
				options["deliverable"] = deliverable
			}
			return chat(cmd, c, args[0], options)
		}),
	}
	cmd.Flags().BoolVar(&evidence, "evidence", false, "answers must cite the agent's knowledge bases")
	cmd.Flags().StringVar(&deliverable, "deliverable", "", "make each answer a file too: xlsx, pptx or html (svc runs artifacts RUN)")
	return cmd
}

// chat posts each line with the given options of a message.
func chat(cmd *cobra.Command, c *Client, agent string, options map[string]any) error {
	ctx := cmd.Context()
	agentID, err := c.findAgent(ctx, agent)
	if err != nil {
		return err
	}
	var thread struct{ ID string }
	if err := c.Call(ctx, "POST", "/v1/threads", map[string]any{"agent_id": agentID}, &thread); err != nil {
		return err
	}
	t := &talk{cmd: cmd, client: c, in: newTyped(cmd.InOrStdin()), out: &display{w: cmd.OutOrStdout()}, json: cli.WantsJSON(cmd)}
	t.asks = !t.json && isTerminal(cmd.InOrStdin())
	if t.json {
		err = cli.PrintJSONLine(cmd.OutOrStdout(), map[string]string{"type": "thread", "thread_id": thread.ID})
	} else {
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "thread %s; an empty line ends the talk\n", cli.Visible(thread.ID))
	}
	if err != nil {
		return err
	}
	asked, failed := 0, 0
	for {
		if !t.json {
			fmt.Fprint(cmd.OutOrStdout(), "> ")
		}
		line, err := t.in.next(ctx)
		if line = strings.TrimSpace(line); line == "" {
			if err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			if failed > 0 && !isTerminal(cmd.InOrStdin()) {
				return fmt.Errorf("%d of %d answers failed", failed, asked)
			}
			return nil
		}
		asked++
		var posted struct {
			RunID string `json:"run_id"`
		}
		message := maps.Clone(options)
		message["content"] = line
		err = c.post(ctx, "/v1/threads/"+thread.ID+"/messages", message, &posted, true)
		if ctx.Err() != nil || shutOut(err) {
			return err
		}
		if err == nil {
			err = t.follow(ctx, posted.RunID)
			if ctx.Err() != nil {
				return goesOn(posted.RunID)
			}
		}
		if err != nil {
			failed++ // the conversation continues
			cli.Report(cmd.ErrOrStderr(), t.json, err, cli.ExitFailed)
		}
	}
}

// shutOut reports whether a refusal would meet every further message of a conversation too.
func shutOut(err error) bool {
	var refused *APIError
	return errors.As(err, &refused) && slices.Contains([]int{http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound}, refused.Status)
}

// talk is one conversation on a terminal or in a pipe.
type talk struct {
	cmd    *cobra.Command
	client *Client
	in     *typed
	out    *display
	json   bool
	asks   bool // approvals are decided in this terminal

	open []string  // approvals of the run that the user was not asked about yet
	ask  *question // the open question
}

// question is an approval that the user is asked about.
type question struct {
	approval ApprovalView
	wants    answerTo
	edited   json.RawMessage
}

// answerTo says what the next line answers.
type answerTo int

const (
	toChoice answerTo = iota
	toWhy             // a rejection
	toInstead
	toArgs
	toSending
)

var promptFor = map[answerTo]string{
	toChoice:  "[a]pprove [r]eject [e]dit re[s]pond [w]ait: ",
	toWhy:     "why (may be empty): ",
	toInstead: "what to tell the agent instead (empty: back): ",
	toArgs:    "all arguments, one line of JSON (empty: back): ",
	toSending: "send this? [y/N] ",
}

// follow shows a run to its end. While the run waits for approvals, its stream stays open,
// so that a decision made elsewhere withdraws the question.
func (t *talk) follow(ctx context.Context, run string) error {
	ctx, cancel := context.WithCancel(ctx)
	frames, ended := make(chan Frame), make(chan struct{})
	var followed error // valid once ended is closed
	go func() {
		defer close(ended)
		followed = t.client.Follow(ctx, run, "?replay=full", func(f Frame) error {
			select {
			case frames <- f:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	defer func() {
		cancel()
		<-ended
	}()
	t.open, t.ask = nil, nil
	var failed error
	for {
		select {
		case f := <-frames:
			if f.Type == "run.failed" {
				failed = runFailed(f)
			}
			if err := t.frame(ctx, f); err != nil {
				return err
			}
		case l := <-t.in.coming(t.ask != nil):
			if err := t.answered(ctx, t.in.taken(l)); err != nil {
				return err
			}
		case <-ended:
			return errors.Join(followed, failed)
		}
	}
}

func (t *talk) frame(ctx context.Context, f Frame) error {
	var about struct {
		ApprovalID string `json:"approval_id"`
		Decision   string `json:"decision"`
	}
	if err := json.Unmarshal(f.Data, &about); err != nil {
		return err
	}
	switch {
	case f.Type == "approval.required":
		t.open = append(t.open, about.ApprovalID)
	case f.Type == "run.resumed" || f.Terminal():
		t.withdraw() // all approvals of the turn are decided
	}
	switch {
	case t.json:
		if err := cli.PrintJSONLine(t.cmd.OutOrStdout(), f.Data); err != nil {
			return err
		}
	case t.asks && f.Type == "approval.required": // the question shows the same
	default:
		if err := t.out.frame(f); err != nil {
			return err
		}
	}
	if f.Type == "run.waiting" && t.asks {
		return t.next(ctx)
	}
	return nil
}

// withdraw withdraws the question: the approval was decided or can no longer be.
func (t *talk) withdraw() {
	if t.ask != nil {
		t.out.text("\n")
	}
	t.open, t.ask = nil, nil
}

// next asks about the next undecided approval.
func (t *talk) next(ctx context.Context) error {
	t.ask = nil
	for len(t.open) > 0 {
		approval := t.open[0]
		t.open = t.open[1:]
		q := &question{}
		if err := t.client.Call(ctx, "GET", "/v1/approvals/"+url.PathEscape(approval), nil, &q.approval); err != nil {
			if err := t.leave(approval, err); err != nil {
				return err
			}
			continue
		}
		if q.approval.Status != "pending" {
			if err := t.out.line("[approval %s: %s]", cli.Visible(approval), cli.Visible(q.approval.Status)); err != nil {
				return err
			}
			continue
		}
		t.ask = q
		if err := t.describe(&q.approval); err != nil {
			return err
		}
		return t.prompt(toChoice)
	}
	return nil
}

// describe shows what a person needs to decide.
func (t *talk) describe(a *ApprovalView) error {
	lines := []string{fmt.Sprintf("%s wants an approval, %s risk, %s of role %s so far, %s left", cli.Visible(a.RequestedAction.Tool), cli.Visible(a.Risk),
		a.ledger(), cli.Visible(a.AssigneeRole), timeLeft(time.Until(a.ExpiresAt)))}
	lines = append(lines, a.argLines()...)
	if a.Reasoning != "" {
		lines = append(lines, "  because: "+cli.Visible(a.Reasoning))
	}
	for _, line := range append(lines, a.ledgerLines("  ")...) {
		if err := t.out.line("%s", line); err != nil {
			return err
		}
	}
	return nil
}

func (t *talk) prompt(wants answerTo) error {
	t.ask.wants = wants
	return t.out.text(promptFor[wants])
}

// leave tells how to decide an approval elsewhere. why may be nil.
func (t *talk) leave(approval string, why error) error {
	if why != nil {
		if err := t.out.line("[%s]", cli.Visible(why.Error())); err != nil {
			return err
		}
		var refused *APIError
		if errors.As(why, &refused) && (refused.Code == "ALREADY_DECIDED" || refused.Code == "NOT_FOUND") {
			return nil
		}
	}
	return t.out.line("[decide it elsewhere: %s]", howToApprove(approval))
}

// answered handles a typed line.
func (t *talk) answered(ctx context.Context, l typedLine) error {
	t.out.inRow = false // the terminal has shown the typed line end
	if t.ask == nil {
		return t.out.line("[nothing was asked any more: the line was not used]")
	}
	text := strings.TrimSpace(l.text)
	if l.err != nil && text == "" {
		return t.unanswered()
	}
	switch t.ask.wants {
	case toWhy:
		return t.decide(ctx, decision{Action: "reject", Feedback: text})
	case toInstead:
		if text == "" {
			return t.prompt(toChoice)
		}
		return t.decide(ctx, decision{Action: "respond", Feedback: text})
	case toArgs:
		if text == "" {
			return t.prompt(toChoice)
		}
		if err := checkObject([]byte(text)); err != nil {
			if err := t.out.line("[the arguments %s]", err); err != nil {
				return err
			}
			return t.prompt(toArgs)
		}
		t.ask.edited = json.RawMessage(text)
		before, _ := t.ask.approval.edited(len(t.ask.approval.Decisions))
		for _, line := range differences(before, t.ask.edited) {
			if err := t.out.line("  %s", line); err != nil {
				return err
			}
		}
		return t.prompt(toSending)
	case toSending:
		if !isYes(text) {
			return t.prompt(toChoice)
		}
		return t.decide(ctx, decision{Action: "edit", Args: t.ask.edited})
	}
	switch strings.ToLower(text) {
	case "a", "approve":
		return t.decide(ctx, decision{Action: "approve"})
	case "r", "reject":
		return t.prompt(toWhy)
	case "e", "edit":
		return t.prompt(toArgs)
	case "s", "respond":
		return t.prompt(toInstead)
	case "w", "wait":
		if err := t.leave(t.ask.approval.ID, nil); err != nil {
			return err
		}
		return t.next(ctx)
	}
	return t.prompt(toChoice)
}

// unanswered leaves the open approvals when the input has ended. The run still waits.
func (t *talk) unanswered() error {
	t.asks = false
	waiting := append([]string{t.ask.approval.ID}, t.open...)
	t.open, t.ask = nil, nil
	for _, approval := range waiting {
		if err := t.leave(approval, nil); err != nil {
			return err
		}
	}
	return nil
}

// decide sends the answer. After an error that another answer can correct, it asks again.
func (t *talk) decide(ctx context.Context, d decision) error {
	approval := t.ask.approval.ID
	got, err := t.client.decide(ctx, approval, d)
	var refused *APIError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil:
		if err := t.out.line("[%s: %s]", d.Action, got); err != nil {
			return err
		}
		return t.next(ctx)
	case errors.As(err, &refused) && refused.Status < 500 && !slices.Contains([]string{"INVALID_ARGS", "VALIDATION", "RATE_LIMITED"}, refused.Code):
		if err := t.leave(approval, err); err != nil {
			return err
		}
		return t.next(ctx)
	}
	if err := t.out.line("[%s]", cli.Visible(err.Error())); err != nil {
		return err
	}
	return t.prompt(toChoice)
}

// typed reads an input line by line. It reads a line only when one is requested. A requested
// line whose caller left is the first one next time, so at most one read is in flight.
// That read ends with the input.
type typed struct {
	in    *bufio.Reader
	lines chan typedLine // holds the one requested line
	asked bool
}

type typedLine struct {
	text string
	err  error
}

func newTyped(in io.Reader) *typed {
	return &typed{in: bufio.NewReader(in), lines: make(chan typedLine, 1)}
}

// coming requests a line if one is wanted and none is requested yet. It returns the channel
// of the requested line, or nil. The receiver calls taken.
func (t *typed) coming(wanted bool) <-chan typedLine {
	if wanted && !t.asked {
		t.asked = true
		go func() {
			text, err := t.in.ReadString('\n')
			t.lines <- typedLine{text, err}
		}()
	}
	if !t.asked {
		return nil
	}
	return t.lines
}

func (t *typed) taken(l typedLine) typedLine {
	t.asked = false
	return l
}

// next waits for a line.
func (t *typed) next(ctx context.Context) (string, error) {
	select {
	case l := <-t.coming(true):
		t.taken(l)
		return l.text, l.err
	case <-ctx.Done():
		return "", errInterrupted
	}
}
