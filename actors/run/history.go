package run

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"mime"
	"path"
	"slices"
	"strconv"
	"strings"

	"agentsvc/persistence/engine"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
	"agentsvc/schemas/model"
	"agentsvc/schemas/tool"
	"agentsvc/schemas/turn"
)

// Limits of the attachments in one request, in bytes: what is shown of their texts, and the
// lines that name them.
const (
	maxInline = 256 << 10
	maxNamed  = 64 << 10
)

// Runs are told what strangers write: tools, models and people. So a run's history has a bound,
// and what the large requests of a node take together has one too: from smallRequest on, a
// request has a place for each smallRequest of it, from the reading of the history to the end
// of the turn. Tenants take turns. A run that has heard that much reads its history for each
// turn, and keeps none of it between.
const (
	// maxHistory bounds what model and tools have said in a run, as JSON. A window of two
	// million tokens has room for it.
	maxHistory   = 8 << 20
	historyLimit = "8 MiB"
	// maxThread bounds the messages of the thread in one request.
	maxThread = 4 << 20

	smallRequest  = 256 << 10
	requestPlaces = 1024 // on a node: 256 MiB
	requestEach   = 128  // of a tenant: a turn may take long, and few tenants must not take all
	// sealing is what a sealed value takes beside what is counted: names of fields, key, nonce.
	sealing = 512
)

// errHistory says that the history of a run is too large to be read.
var errHistory = errors.New("run: the history is over its limit")

// place is what a request has of the node's places.
type place struct {
	of     *turn.Places
	tenant id.TenantID
	n      int
}

// take waits for the places of a request of that size.
func (p *place) take(ctx context.Context, size int64) (err error) {
	if p.n > 0 { // at an earlier try
		return nil
	}
	n, err := p.of.TakeSome(ctx, p.tenant, int((size+smallRequest-1)/smallRequest))
	if err == nil {
		p.n = n
	}
	return err
}

func (p *place) give() {
	if p.n > 0 {
		p.of.GiveSome(p.tenant, p.n)
	}
}

// request returns the request to the model: the instructions, the last messages of the
// thread up to the run's own, and the messages of the run so far. What is large is read only
// once its size is known and has its places.
func (k *kind) request(ctx context.Context, s *State, p *place) (*model.Request, error) {
	m := s.Agent.Manifest
	req := &model.Request{
		Model: m.Model.Name, System: m.Instructions, Temperature: m.Model.Temperature, MaxOutputTokens: m.Model.MaxOutputTokens,
		JSONSchema: m.OutputSchema,
	}
	if m.Model.Thinking != nil {
		req.ThinkingBudget = m.Model.Thinking.BudgetTokens
	}
	offer := func() (err error) {
		if !k.hasTools(s) {
			return nil
		}
		if req.Tools, err = k.cfg.Tools.Offer(ctx, callerOf(s)); err != nil {
			return fmt.Errorf("read the agent's tools: %w", err)
		}
		return nil
	}
	if err := offer(); err != nil {
		return nil, err
	}
	said, saidSize, err := k.said(ctx, s, smallRequest)
	if err != nil {
		return nil, err
	}
	thread, threadSize, err := k.messages(ctx, s, smallRequest)
	if err != nil {
		return nil, err
	}
	size := int64(len(req.System)) + saidSize + min(threadSize, maxThread)
	for i := range req.Tools {
		size += int64(len(req.Tools[i].Description) + len(req.Tools[i].Schema))
	}
	if size > smallRequest {
		said, thread, req.Tools = nil, nil, nil // a request that waits holds nothing
		if err := p.take(ctx, size); err != nil {
			return nil, err
		}
		if err := offer(); err != nil {
			return nil, err
		}
		if said, _, err = k.said(ctx, s, math.MaxInt64); err != nil {
			return nil, err
		}
		if thread, _, err = k.messages(ctx, s, maxThread); err != nil {
			return nil, err
		}
	}
	req.Messages = model.Repair(append(thread, said...))
	return req, nil
}

// messages returns the last messages of the thread up to the run's own: those that fit into
// room bytes, and the run's own. size counts all.
func (k *kind) messages(ctx context.Context, s *State, room int64) (list []model.Message, size int64, err error) {
	in := readInput(s.Input)
	if s.ThreadID == nil || s.ThreadSeq <= 1 && len(in.AttachmentIDs) == 0 { // nothing to read
		return []model.Message{{Role: model.User, Text: in.prompt}}, int64(len(in.prompt)), nil
	}
	rows, size, err := k.cfg.Store.Messages(ctx, s.Tenant, *s.ThreadID, s.ThreadSeq, s.Agent.Manifest.Memory.MaxMessages, room)
	if err != nil {
		return nil, 0, fmt.Errorf("read the thread's messages: %w", err)
	}
	if size > room && room < maxThread { // they are read again
		return nil, size, nil
	}
	if n := len(rows); n == 0 || rows[n-1].Seq != s.ThreadSeq { // the thread was deleted in between
		rows = append(rows, engine.Message{Role: string(model.User), Content: in.prompt})
	}
	list, err = k.thread(ctx, s.Tenant, rows)
	return list, size, err
}

// thread returns the conversation of a thread's messages. The newest attachments are
// included first.
func (k *kind) thread(ctx context.Context, tenant id.TenantID, rows []engine.Message) ([]model.Message, error) {
	out := make([]model.Message, len(rows))
	room := inline{texts: maxInline, names: maxNamed}
	for i, row := range slices.Backward(rows) {
		// A system message of a thread is sent as the user's: only the agent gives
		// instructions.
		role := model.User
		if row.Role == string(model.Assistant) {
			role = model.Assistant
		}
		text := row.Content
		if len(row.Attachments) > 0 {
			more, err := k.attached(ctx, tenant, row.Attachments, &room)
			if err != nil {
				return nil, err
			}
			text = strings.TrimPrefix(text+more, "\n\n")
		}
		out[i] = model.Message{Role: role, Text: text}
	}
	return out, nil
}

type attachment struct {
	ID        id.AttachmentID `json:"id"`
	Name      string          `json:"name"`
	MediaType string          `json:"media_type"`
	Size      int64           `json:"size"`
}

// inline is the room that a request still has for attachments.
type inline struct{ texts, names int }

// attached returns a message's attachments as the model gets them: the content of texts, a
// note about each of the others, and the number of those for which there is no room. It
// reduces room.
func (k *kind) attached(ctx context.Context, tenant id.TenantID, shown json.RawMessage, room *inline) (string, error) {
	var list []attachment
	if err := json.Unmarshal(shown, &list); err != nil {
		return "", fmt.Errorf("read a message's attachments: %w", err)
	}
	var b strings.Builder
	unnamed := 0
	for _, a := range list {
		head := "attachment " + strconv.Quote(a.Name) + " (" + a.MediaType + ", " + strconv.FormatInt(a.Size, 10) + " bytes)"
		if len(head) > room.names {
			unnamed++
			continue
		}
		room.names -= len(head)
		var content []byte
		err := fs.ErrNotExist
		if a.isText() && room.texts > 0 && k.cfg.Attachments != nil {
			content, err = k.cfg.Attachments.Start(ctx, tenant, a.ID, room.texts)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			b.WriteString("\n\n[" + head + ": its content is not shown]")
			continue
		case err != nil:
			return "", fmt.Errorf("read attachment %s: %w", a.ID, err)
		}
		content = content[:min(len(content), room.texts)]
		room.texts -= len(content)
		b.WriteString("\n\n[" + head + "]\n" + model.Clean(string(content)))
		if int64(len(content)) < a.Size {
			b.WriteString("\n[the rest of the attachment is not shown]")
		} else {
			b.WriteString("\n[end of the attachment]")
		}
	}
	if unnamed > 0 {
		b.WriteString("\n\n[attachments that are not shown: " + strconv.Itoa(unnamed) + "]")
	}
	return b.String(), nil
}

// isText reports whether an attachment can be read as text.
func (a attachment) isText() bool {
	kind, _, err := mime.ParseMediaType(a.MediaType)
	if err != nil {
		kind = ""
	}
	if strings.HasPrefix(kind, "text/") || kind == "application/json" || strings.HasSuffix(kind, "+json") {
		return true
	}
	switch strings.ToLower(path.Ext(a.Name)) {
	case ".txt", ".md", ".markdown", ".csv", ".json":
		return kind == "" || kind == "application/octet-stream"
	}
	return false
}

// said returns the messages of the run, from its sealed steps if they are not in memory, and
// their size. If that is more than room, there are none.
func (k *kind) said(ctx context.Context, s *State, room int64) ([]model.Message, int64, error) {
	if s.Known || s.Steps == 0 {
		return s.Said, int64(s.Heard), nil
	}
	most := maxHistory + sealing*int64(s.Steps)
	steps, size, err := k.cfg.Store.Sealed(ctx, s.Tenant, s.ID, 0, min(room, most))
	switch {
	case err != nil:
		return nil, 0, fmt.Errorf("read the run's steps: %w", err)
	case size > most:
		return nil, 0, errHistory
	case size > room:
		return nil, size, nil
	}
	out := make([]model.Message, 0, len(steps))
	var results []model.CallResult // of the current turn, one step each
	var people []string
	flush := func() {
		if results != nil {
			out = append(out, heard(results, people)...)
			results, people = nil, nil
		}
	}
	for _, step := range steps {
		var m model.Message
		if err := k.open(s, step.Idx, step.Value, &m); err != nil {
			return nil, 0, err
		}
		if m.Role == model.Tool {
			results = append(results, m.Results...)
			if m.Text != "" {
				people = append(people, m.Text)
			}
			continue
		}
		flush()
		out = append(out, m)
		if m.Role == model.Assistant && len(m.Calls) == 0 { // a text that was asked for again
			out = append(out, reminder())
		}
	}
	flush()
	return out, size, nil
}

// heard returns the messages that follow a turn with calls: the results in call order, then
// what people answered instead of approving. The sealed value of a step holds both.
func heard(results []model.CallResult, people []string) []model.Message {
	out := []model.Message{{Role: model.Tool, Results: results}}
	if len(people) > 0 {
		out = append(out, model.Message{Role: model.User, Text: strings.Join(people, "\n\n")})
	}
	return out
}

// open opens a step's sealed value into v.
func (k *kind) open(s *State, idx int, value vault.Sealed, v any) error {
	plain, err := k.cfg.Sealer.Open(engine.StepAt(s.Tenant, s.ID, idx), value)
	if err != nil {
		return fmt.Errorf("open step %d: %w", idx, err)
	}
	if err := json.Unmarshal(plain, v); err != nil {
		return fmt.Errorf("read step %d: %w", idx, err)
	}
	return nil
}

// options returns the options of a run's input that concern tools.
func options(input json.RawMessage) (o tool.Options) {
	if !bytes.Contains(input, []byte(`"options"`)) {
		return o
	}
	var in struct {
		Options struct {
			Autonomy string    `json:"autonomy"`
			Tools    *[]string `json:"tools"`
		} `json:"options"`
	}
	if json.Unmarshal(input, &in) != nil { // an input of another shape, as sent
		return o
	}
	return tool.Options{RequireApproval: in.Options.Autonomy == "require_approval", Tools: in.Options.Tools}
}

// input is a run's input as the model gets it.
type input struct {
	prompt        string
	AttachmentIDs []id.AttachmentID
}

// readInput finds the prompt (service.md, Threads and runs): a bare string,
// {text} or {input}; any other input is read as its JSON text.
func readInput(raw json.RawMessage) input {
	var bare string
	if len(raw) == 0 || string(raw) == "null" {
		return input{}
	}
	if json.Unmarshal(raw, &bare) == nil {
		return input{prompt: model.Clean(bare)}
	}
	// A map, because names must match exactly, case included.
	var fields map[string]json.RawMessage
	if json.Unmarshal(raw, &fields) == nil {
		in := input{prompt: string(model.CleanJSON(raw))}
		if list, ok := fields["attachment_ids"]; ok && json.Unmarshal(list, &in.AttachmentIDs) != nil {
			in.AttachmentIDs = nil
		}
		for _, name := range []string{"text", "input"} {
			if v, ok := fields[name]; ok {
				if json.Unmarshal(v, &bare) == nil {
					in.prompt = model.Clean(bare)
				} else {
					in.prompt = string(model.CleanJSON(v))
				}
				break
			}
		}
		return in
	}
	return input{prompt: string(model.CleanJSON(raw))}
}
