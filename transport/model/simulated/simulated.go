// Package simulated is the built-in model (open-parts.md, Agents): deterministic, cheap and
// without a network. It says that it is not a real model. Its answer quotes the user's text;
// lines of the last user message that start with a directive script it, in order:
//
//	/say TEXT           says TEXT
//	/tokens N           says N words, at most 100,000
//	/delay DURATION     pauses between tokens from here on, at most 60s
//	/think TEXT         thinks TEXT
//	/call TOOL {args}   calls a tool
//	/cite TEXT          says TEXT with the mark of the first passage that was retrieved for it
//	/json VALUE         says VALUE, which must be JSON
//	/fail MESSAGE       fails
//
// Consecutive calls are parallel calls of one turn; the lines after them are the turn after
// their results. If no text follows the last calls, the answer quotes their results. An answer
// that quotes the user cites the first passage of evidence, if there is one. Asked for an
// answer again, the model plays the same part again. An
// invalid directive is answered with a sentence that explains it. An unknown /word is part of
// the user's text.
package simulated

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"agentsvc/schemas/knowledge"
	schema "agentsvc/schemas/model"
	"agentsvc/schemas/problem"
)

const (
	maxTokens = 100_000
	maxDelay  = time.Minute
	maxQuote  = 400 // bytes of the user's text or of one result
)

const (
	introduction = "This is a simulated model."
	filler       = "these words come from a simulated model and mean nothing "
)

// Client is the simulated model. It has no state.
type Client struct{}

type verb uint8

const (
	say verb = iota
	tokens
	delay
	think
	call
	value
	cite
	fail
)

type directive struct {
	verb  verb
	text  string
	n     int
	pause time.Duration
	tool  string
	args  string
}

// Stream implements schema.Client.
func (Client) Stream(ctx context.Context, req *schema.Request, sink schema.Sink) (*schema.Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, cancelled(ctx, true)
	}
	asked, turn, results := state(req)
	mark := retrieved(req)
	s := speaker{sink: sink, limit: req.MaxOutputTokens}
	s.res.Finish = schema.FinishStop
	script, rest := parse(asked)
	err := s.play(ctx, req, script, rest, turn, results, mark)
	if s.timer != nil {
		s.timer.Stop()
	}
	if err != nil {
		return nil, err
	}
	res := s.res // a copy: the speaker stays on the stack
	res.Text = strings.Join(s.said, "")
	if len(s.thought) > 0 {
		res.Thinking = []schema.Thinking{{Text: strings.Join(s.thought, "")}}
	}
	res.TokensIn, res.TokensOut = req.EstimateInput(), s.count
	return &res, nil
}

// state returns the user's last message, the number of turns with calls since, and the
// results of the last of them.
func state(req *schema.Request) (asked string, turn int, results []schema.CallResult) {
	for i := len(req.Messages) - 1; i >= 0; i-- {
		m := &req.Messages[i]
		switch {
		case m.Role == schema.User && m.Aside:
		case m.Role == schema.User:
			return schema.Clean(m.Text), turn, results
		case m.Role == schema.Assistant && len(m.Calls) > 0:
			turn++
		case m.Role == schema.Tool && turn == 0:
			results = append(m.Results[:len(m.Results):len(m.Results)], results...)
		}
	}
	return "", turn, results
}

// retrieved returns the mark of the first passage that was retrieved for the user's last
// message, in brackets; empty: there is none.
func retrieved(req *schema.Request) (mark string) {
	for i := len(req.Messages) - 1; i >= 0; i-- {
		m := &req.Messages[i]
		texts := []string{m.Text}
		switch {
		case m.Role == schema.Tool:
			texts = nil
			for _, r := range m.Results {
				texts = append(texts, r.Content)
			}
		case m.Role != schema.User:
			continue
		case !m.Aside:
			return mark
		}
		for j := len(texts) - 1; j >= 0; j-- {
			if list := knowledge.Cites(texts[j]); len(list) > 0 {
				mark = "[" + list[0] + "]"
			}
		}
	}
	return mark
}

// parse splits a message into directives and the rest.
func parse(s string) (script []directive, rest string) {
	if !strings.HasPrefix(s, "/") && !strings.Contains(s, "\n/") {
		return nil, s
	}
	var kept []string
	for line := range strings.SplitSeq(s, "\n") {
		if d, ok := parseLine(strings.TrimSuffix(line, "\r")); ok {
			script = append(script, d)
		} else {
			kept = append(kept, line)
		}
	}
	return script, strings.TrimSpace(strings.Join(kept, "\n"))
}

func parseLine(line string) (d directive, ok bool) {
	if !strings.HasPrefix(line, "/") {
		return d, false
	}
	word, arg, _ := strings.Cut(line, " ")
	arg = strings.TrimSpace(arg)
	d.text = arg
	switch word {
	case "/say":
		if arg == "" {
			return complain("/say needs a text."), true
		}
		d.verb = say
	case "/think":
		if arg == "" {
			return complain("/think needs a text."), true
		}
		d.verb = think
	case "/tokens":
		n, err := strconv.Atoi(arg)
		if err != nil || n < 1 {
			return complain("/tokens needs a whole number above 0."), true
		}
		d.verb, d.n = tokens, min(n, maxTokens)
	case "/delay":
		p, err := time.ParseDuration(arg)
		if err != nil || p < 0 {
			return complain("/delay needs a duration such as 50ms."), true
		}
		d.verb, d.pause = delay, min(p, maxDelay)
	case "/call":
		tool, args, _ := strings.Cut(arg, " ")
		if args = strings.TrimSpace(args); args == "" {
			args = "{}"
		}
		switch {
		case tool == "" || tool[0] == '{':
			return complain("/call needs the name of a tool."), true
		case args[0] != '{' || !json.Valid([]byte(args)):
			return complain("/call needs its arguments as one JSON object on the same line."), true
		}
		d.verb, d.tool, d.args = call, tool, args
	case "/cite":
		if arg == "" {
			return complain("/cite needs a text."), true
		}
		d.verb = cite
	case "/json":
		if !json.Valid([]byte(arg)) {
			return complain("/json needs a JSON value on the same line."), true
		}
		d.verb = value
	case "/fail":
		if d.verb = fail; arg == "" {
			d.text = "simulated failure"
		}
	default:
		return directive{}, false
	}
	return d, true
}

func complain(why string) directive { return directive{verb: say, text: introduction + " " + why} }

// speaker produces one turn.
type speaker struct {
	sink    schema.Sink
	res     schema.Result
	said    []string
	thought []string
	count   int64
	limit   int // tokens; 0: none
	pause   time.Duration
	timer   *time.Timer
	began   bool
}

// play performs the directives of one turn; turn is the number of turns with calls so far.
func (s *speaker) play(ctx context.Context, req *schema.Request, script []directive, rest string, turn int, results []schema.CallResult, mark string) error {
	at := 0 // the turn that the directive belongs to
	for i := 0; i < len(script) && at <= turn; i++ {
		d := &script[i]
		if d.verb == delay {
			s.pause = d.pause
			continue
		}
		if at == turn {
			if d.verb == cite {
				d = &directive{verb: say, text: strings.TrimSpace(d.text + " " + mark)}
			}
			if err := s.perform(ctx, req, d); err != nil {
				return err
			}
		}
		if d.verb == call && lastOfTurn(script[i+1:]) {
			at++
		}
	}
	if len(s.res.Calls) > 0 {
		s.res.Finish = schema.FinishCalls
		return nil
	}
	if len(s.said) > 0 {
		return nil
	}
	if turn > 0 {
		return s.speak(ctx, quoteResults(results), false)
	}
	return s.speak(ctx, strings.TrimSpace(quoteUser(rest)+" "+mark), false)
}

// lastOfTurn reports whether no further call follows before other output.
func lastOfTurn(script []directive) bool {
	for _, d := range script {
		if d.verb != delay {
			return d.verb != call
		}
	}
	return true
}

func (s *speaker) perform(ctx context.Context, req *schema.Request, d *directive) error {
	switch d.verb {
	case say, value:
		return s.line(ctx, d.text, false)
	case think:
		return s.line(ctx, d.text, true)
	case tokens:
		n := d.n
		if s.limit > 0 {
			n = min(n, s.limit+1)
		}
		words := strings.Count(filler, " ")
		text := strings.Repeat(filler, n/words+1)
		for cut := 0; ; cut++ {
			if n--; n < 0 {
				return s.line(ctx, strings.TrimSuffix(text[:cut], " "), false)
			}
			cut += strings.IndexByte(text[cut:], ' ')
		}
	case call:
		s.count += schema.EstimateTokens(d.args) + 1
		id := "call_" + strconv.Itoa(len(req.Messages)) + "_" + strconv.Itoa(len(s.res.Calls))
		s.res.Calls = append(s.res.Calls, schema.NewCall(id, resolve(req.Tools, d.tool), d.args))
	case fail:
		e := &schema.Error{Kind: schema.Refused, Message: d.text, BeforeFirstToken: !s.began}
		if s.began {
			e.Kind = schema.Broken
		}
		return e
	}
	return nil
}

// resolve returns the qualified name for a bare one, if it is unambiguous.
func resolve(tools []schema.ToolSpec, name string) string {
	found := ""
	for i := range tools {
		switch q := tools[i].Name; {
		case q == name:
			return name
		case len(q) > len(name) && strings.HasSuffix(q, name) && (q[len(q)-len(name)-1] == '.' || q[len(q)-len(name)-1] == ':'):
			if found != "" {
				return name
			}
			found = q
		}
	}
	if found == "" {
		return name
	}
	return found
}

// line outputs a text or thinking on a line of its own.
func (s *speaker) line(ctx context.Context, text string, thinking bool) error {
	if !thinking && len(s.said) > 0 || thinking && len(s.thought) > 0 {
		text = "\n" + text
	}
	return s.speak(ctx, text, thinking)
}

// speak outputs a text or thinking token by token: words with the space after them.
func (s *speaker) speak(ctx context.Context, text string, thinking bool) error {
	from := 0
	for from < len(text) {
		if s.limit > 0 && s.count >= int64(s.limit) {
			s.res.Finish = schema.FinishLength
			break
		}
		if err := s.wait(ctx); err != nil {
			return err
		}
		to := len(text)
		if n := strings.IndexByte(text[from:], ' '); n >= 0 {
			to = from + n + 1
		}
		s.began = true
		s.count++
		if thinking {
			s.sink.Thinking(text[from:to])
		} else {
			s.sink.Text(text[from:to])
		}
		from = to
	}
	if from == 0 {
		return nil
	}
	if thinking {
		s.thought = append(s.thought, text[:from])
	} else {
		s.said = append(s.said, text[:from])
	}
	return nil
}

// wait pauses between two tokens and checks now and then whether the turn was cancelled.
func (s *speaker) wait(ctx context.Context) error {
	if s.pause == 0 || !s.began {
		if s.count&63 == 63 && ctx.Err() != nil {
			return cancelled(ctx, !s.began)
		}
		return nil
	}
	if s.timer == nil {
		s.timer = time.NewTimer(s.pause)
	} else {
		s.timer.Reset(s.pause)
	}
	select {
	case <-s.timer.C:
		return nil
	case <-ctx.Done():
		return cancelled(ctx, !s.began)
	}
}

func cancelled(ctx context.Context, before bool) *schema.Error {
	return &schema.Error{Kind: schema.Cancelled, Message: "the turn was cancelled", BeforeFirstToken: before, Err: context.Cause(ctx)}
}

func quoteUser(s string) string {
	if s == "" {
		return introduction + " You said nothing."
	}
	return introduction + ` You said: "` + problem.ClipBytes(s, maxQuote) + `"`
}

func quoteResults(results []schema.CallResult) string {
	if len(results) == 0 {
		return introduction + " The tools answered nothing."
	}
	var b strings.Builder
	b.WriteString(introduction)
	for _, r := range results {
		if r.IsError {
			b.WriteString(" A tool failed: ")
		} else {
			b.WriteString(" A tool answered: ")
		}
		b.WriteString(problem.ClipBytes(schema.Clean(r.Content), maxQuote))
	}
	return b.String()
}
