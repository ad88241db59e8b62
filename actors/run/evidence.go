package run

import (
	"bytes"
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"agentsvc/persistence/failpoint"
	"agentsvc/schemas/agent"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/jsontext"
	"agentsvc/schemas/knowledge"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/model"
	"agentsvc/schemas/tool"
)

// Evidence (service.md, Rules for thread messages; open-parts.md, Evidence): a run with
// `evidence: true` searches the agent's knowledge bases before the model is first asked, in a
// step of its own. Its final answer must have at least one mark that names a chunk retrieved in
// the run, by this search or by kb.search. An answer without one is asked for once more; then
// the run fails with OUTPUT_INVALID. It also fails if no base exists, and if the search finds
// nothing while the agent cannot search again or hand over: no answer could cite anything.
//
//	start ── Retrieved ──► the model's steps ── uncited ──► asked again ── uncited ──► failed
//	            └ nothing to cite ──► failed       └ cited ──► succeeded ◄── cited ┘
//
// Like machine.go, the machine's part waits for nothing and reads no clock.

// Retriever searches the knowledge bases of an agent for a run with `evidence`. The error is
// the storage's.
type Retriever interface {
	Retrieve(ctx context.Context, t tool.Caller, query string, topK int) (tool.Retrieval, error)
}

// Retrieve is the effect of the search before the first turn, until the run's time is up. It
// changes nothing, so it is repeated after a crash, as a new step.
type Retrieve struct {
	Idx   int
	Until time.Time
	Of    *State // as committed
}

// Key is stable over re-performance. The step that follows an abandoned one has another key.
func (e Retrieve) Key() string { return retrieveKey(e.Idx) }

func retrieveKey(idx int) string { return "retrieve/" + strconv.Itoa(idx) }

// Retrieved is the result of the search of step Idx.
type Retrieved struct {
	Idx int
	tool.Retrieval
	Failed bool // it could not be made
}

// Crash points: the search has ended and its result is not committed; the result is about to
// be committed; the answer without a citation is about to be committed with the next step.
var (
	pointSearched  = failpoint.Declare("run.evidence_searched")
	pointRetrieved = failpoint.Declare("run.evidence_before_result")
	pointUncited   = failpoint.Declare("run.evidence_uncited")
)

// evidenceTopK is how many chunks a run with evidence starts with.
const evidenceTopK = 8

const (
	noBasesMessage  = "None of the agent's knowledge bases exists, and evidence asks for citations of them."
	noHitsMessage   = "The agent's knowledge bases have nothing about this, so no answer can cite them, which evidence asks for."
	uncitedMessage  = "The answer cites nothing from a knowledge base, which evidence asks for."
	noSearchMessage = "The knowledge bases could not be searched."

	evidenceNote = "The service searched the knowledge bases for the message above. Answer from these passages, and from those of further searches if you can search. " +
		"At least one statement must have the mark of the passage that it rests on. The result of the search follows.\n"
	// askedAgain is said to a model whose answer cites nothing that was retrieved.
	askedAgain = "Your answer was not accepted: it has no mark of a passage that was retrieved for it. Answer again, completely, " +
		"and put directly after each statement the mark of the passage that it rests on, copied exactly as [kb:<document_id>#<position>]."
)

var failedSearch = tool.FailedResult(tool.ErrToolFailed, noSearchMessage)

// demandsEvidence reports whether a run's input asks for citations.
func demandsEvidence(input json.RawMessage) bool {
	if !bytes.Contains(input, []byte(`"evidence"`)) {
		return false
	}
	var in struct {
		Options struct {
			Evidence bool `json:"evidence"`
		} `json:"options"`
	}
	return json.Unmarshal(input, &in) == nil && in.Options.Evidence
}

// owesEvidence reports whether the search before the first turn has not been made.
func (s *State) owesEvidence() bool { return !s.Retrieved && demandsEvidence(s.Input) }

// retrieve begins the step of the search.
func (c *change) retrieve() {
	if len(c.s.Agent.Manifest.KnowledgeBases) == 0 {
		c.end(lifecycle.RunFailed, lifecycle.FailOutputInvalid, noBasesMessage)
		return
	}
	step := StepBegan{Idx: c.s.Steps, Kind: lifecycle.StepRetrieval, Name: tool.KBSearch, Status: lifecycle.StepRunning, Seq: c.seq(), Called: c.seq()}
	step.Input = jsontext.Must(struct {
		Query string `json:"query"`
		TopK  int    `json:"top_k"`
	}{evidenceQuery(c.s.Input), evidenceTopK})
	c.s.Steps++
	c.s.Open = &OpenStep{Idx: step.Idx, Kind: step.Kind, Seq: step.Seq}
	c.fact(step)
}

// retrieved ends that step, and asks the model if its answer could cite something.
func (c *change) retrieved(m Retrieved) bool {
	if !c.s.waitsFor(m.Idx) || c.s.Open.Kind != lifecycle.StepRetrieval {
		return false
	}
	c.clock()
	c.s.Retrieved = true
	out := m.Outcome
	if m.Failed {
		out = failedSearch
	}
	e := StepEnded{Status: lifecycle.StepSucceeded, Output: out.Shown, Seq: c.retrievalSeq(out)}
	if out.IsError {
		e.Status = lifecycle.StepFailed
	} else {
		said := model.Message{Role: model.User, Text: evidenceNote + out.Content, Aside: true}
		e.History = c.heard(said)
		c.say(said)
	}
	c.endStep(e)
	manifest := c.s.Agent.Manifest
	switch {
	case c.overTime():
	case m.Failed:
		c.end(lifecycle.RunFailed, lifecycle.FailInternal, noSearchMessage)
	case m.Bases == 0:
		c.end(lifecycle.RunFailed, lifecycle.FailOutputInvalid, noBasesMessage)
	case m.Hits == 0 && !manifest.HasBuiltin(agent.BuiltinKBSearch) && len(manifest.Handoffs) == 0:
		c.end(lifecycle.RunFailed, lifecycle.FailOutputInvalid, noHitsMessage)
	default:
		c.ask()
	}
	return true
}

// retrievalSeq returns the number of the tool.result of a search, after those of its
// retrieval.result frames.
func (c *change) retrievalSeq(out tool.Outcome) int64 {
	c.s.Seq += int64(event.CountRetrieved(out.Shown))
	return c.seq()
}

// heard counts a message that its step keeps for the run's history. A run that has heard much
// keeps none of it in memory.
func (c *change) heard(m model.Message) *model.Message {
	if c.s.Heard += m.Size(); c.s.Heard > smallRequest {
		c.s.Said, c.s.Known = nil, false
	}
	return &m
}

// say adds messages to the run's history.
func (c *change) say(list ...model.Message) {
	if c.s.Known {
		c.s.Said = append(c.s.Said[:len(c.s.Said):len(c.s.Said)], list...)
	}
}

// uncited reports whether the verdict is on an answer that the guardrails let pass and that
// lacks the citations that the run's input asks for.
func (s *State) uncited(v *Verdict) bool {
	return v != nil && !v.Late && v.Reason == "" && len(v.Citations) == 0 && demandsEvidence(s.Input)
}

// askAgain asks the model for an answer with citations, once.
func (c *change) askAgain(r *model.Result) {
	c.s.AskedAgain = true
	c.say(r.Message(), reminder())
	c.ask()
}

// reminder returns the message that follows an answer without citations in the model's history.
func reminder() model.Message { return model.Message{Role: model.User, Text: askedAgain, Aside: true} }

// evidenceQuery returns the query of the search: the start of the message's text. Its quotes are
// those of a person, who asks for no phrase.
func evidenceQuery(raw json.RawMessage) string {
	text := strings.ReplaceAll(readInput(raw).prompt, `"`, " ")
	n := 0
	for i := range text {
		if n == knowledge.MaxQueryRunes {
			return text[:i]
		}
		n++
	}
	return text
}

// search makes the search of an open retrieval step. It returns nil if it is no longer owed.
func (k *kind) search(ctx context.Context, left time.Duration, e Retrieve) any {
	s := e.Of
	bounded, stop := context.WithTimeout(ctx, left)
	defer stop()
	m := Retrieved{Idx: e.Idx}
	var err error
	if k.cfg.Retriever == nil {
		m.Failed = true
	} else {
		err = retry(bounded, func() (err error) {
			m.Retrieval, err = k.cfg.Retriever.Retrieve(bounded, callerOf(s), evidenceQuery(s.Input), evidenceTopK)
			return err
		})
	}
	failpoint.Hit(pointSearched)
	switch {
	case ctx.Err() != nil:
		return nil
	case bounded.Err() != nil:
		return TimeUp{Idx: e.Idx}
	case err != nil:
		k.log(k.cfg.Log.Error(), s).Err(err).Msg("knowledge bases could not be searched for evidence")
		m.Failed = true
	}
	return m
}

// cite adds to a verdict the citations of its text: the marks that name chunks retrieved in
// this run. The error is the storage's.
func (k *kind) cite(ctx context.Context, s *State, v *Verdict) error {
	if v.Late || v.Reason != "" {
		return nil
	}
	cites := knowledge.Cites(v.Answer.Text)
	if len(cites) == 0 {
		return nil
	}
	var known map[string]knowledge.Citation
	if err := retry(ctx, func() (err error) {
		known, err = k.cfg.Store.Cited(ctx, s.Tenant, s.ID, cites)
		return err
	}); err != nil {
		return err
	}
	for _, cite := range cites {
		if c, ok := known[cite]; ok {
			v.Citations = append(v.Citations, c)
		}
	}
	return nil
}

// showCitations returns the citations of a message as its row keeps them, nil for none.
func showCitations(list []knowledge.Citation) json.RawMessage {
	if len(list) == 0 {
		return nil
	}
	return jsontext.Must(list)
}

// Citing reads what a run's searches found.
type Citing interface {
	// Cited returns the chunks that the run's searches found and that have one of the marks,
	// by mark.
	Cited(ctx context.Context, tenant id.TenantID, run id.RunID, cites []string) (map[string]knowledge.Citation, error)
}
