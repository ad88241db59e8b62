package model

import (
	"errors"
	"strconv"
	"strings"

	schema "agentsvc/schemas/model"
)

const (
	maxAnswer = 8 << 20 // bytes of text, thinking and arguments per turn
	maxCalls  = 128     // per turn
)

// goOn is the user's message where a protocol requires one and there is none.
const goOn = "(Go on.)"

// cutOff stands for the arguments of a call that the provider cut off before the first of them.
const cutOff = "(cut off)"

var (
	errAnswerTooLong = errors.New("the answer is too long")
	errMalformed     = errors.New("the stream contains data that is not JSON")
)

// turn collects what the model has sent so far.
type turn struct {
	sink    schema.Sink
	req     *schema.Request
	names   names
	said    text
	thought text
	blocks  []thinking
	calls   []call
	size    int
	room    *room
	begun   bool   // the first token has arrived
	onBegin func() // called once, at the first token
	finish  schema.Finish
	in, out int64
	counted bool
	w       walk
}

// thinking is a block of thinking: a part of turn.thought.
type thinking struct {
	from, to  int    // to < 0: still open
	signature []byte // comes in pieces
	redacted  string
}

type call struct {
	id, name string
	args     text
}

func (t *turn) begin(n int) error {
	if !t.begun {
		t.begun = true
		if t.onBegin != nil {
			t.onBegin()
		}
	}
	if t.size += n; t.size > maxAnswer {
		return errAnswerTooLong
	}
	return t.room.hold(t.size)
}

func (t *turn) say(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	if err := t.begin(len(p)); err != nil {
		return err
	}
	if s := t.said.add(p); s != "" {
		t.sink.Text(s)
	}
	return nil
}

func (t *turn) think(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	if err := t.begin(len(p)); err != nil {
		return err
	}
	if n := len(t.blocks); n == 0 || t.blocks[n-1].to >= 0 {
		t.openThinking()
	}
	if s := t.thought.add(p); s != "" {
		t.sink.Thinking(s)
	}
	return nil
}

func (t *turn) openThinking() {
	t.blocks = append(t.blocks, thinking{from: t.thought.b.Len(), to: -1})
}

func (t *turn) closeThinking() {
	if n := len(t.blocks); n > 0 && t.blocks[n-1].to < 0 {
		if s := t.thought.flush(); s != "" {
			t.sink.Thinking(s)
		}
		t.blocks[n-1].to = t.thought.b.Len()
	}
}

// call opens a call and returns its number.
func (t *turn) call(id, name string) (int, error) {
	if len(t.calls) == maxCalls {
		return 0, errAnswerTooLong
	}
	t.calls = append(t.calls, call{id: id, name: name})
	return len(t.calls) - 1, t.begin(len(id) + len(name))
}

func (t *turn) args(n int, p []byte) error {
	if len(p) == 0 {
		return nil
	}
	if err := t.begin(len(p)); err != nil {
		return err
	}
	t.calls[n].args.add(p)
	return nil
}

// result completes the turn.
func (t *turn) result() *schema.Result {
	t.closeThinking()
	if s := t.said.flush(); s != "" {
		t.sink.Text(s)
	}
	r := &schema.Result{Text: t.said.b.String(), Finish: t.finish, TokensIn: t.in, TokensOut: t.out}
	all := t.thought.b.String()
	for _, b := range t.blocks {
		if k := (schema.Thinking{Text: all[b.from:b.to], Signature: string(b.signature), Redacted: b.redacted}); k != (schema.Thinking{}) {
			r.Thinking = append(r.Thinking, k)
		}
	}
	spoken := t.size
	if len(t.calls) > 0 {
		r.Calls = make([]schema.Call, 0, len(t.calls))
		ids := make(map[string]bool, len(t.calls))
		for i := range t.calls {
			c := &t.calls[i]
			c.args.flush()
			id := c.id
			if id == "" || ids[id] { // some servers send no id, or the same for all
				id = "call_" + strconv.Itoa(len(t.req.Messages)) + "_" + strconv.Itoa(i)
			}
			ids[id] = true
			args := c.args.b.String()
			if i == len(t.calls)-1 && t.finish != schema.FinishStop && t.finish != schema.FinishCalls && strings.TrimSpace(args) == "" {
				args = cutOff // no text is a call without arguments only in a turn that the model has completed
			}
			r.Calls = append(r.Calls, schema.NewCall(id, t.names.qualified(c.name), args))
		}
		if r.Finish == schema.FinishStop {
			r.Finish = schema.FinishCalls
		}
	}
	if !t.counted {
		r.TokensIn, r.TokensOut, r.Estimated = t.req.EstimateInput(), int64(spoken+3)/4, true
	}
	return r
}
