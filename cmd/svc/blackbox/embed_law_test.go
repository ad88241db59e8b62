package blackbox

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"agentsvc/cmd/svc/client"
)

// The checks of the embed tests must find violations.
func TestEmbedLawsFindViolations(t *testing.T) {
	t.Parallel()
	at := func(ms int) time.Time { return time.UnixMilli(int64(1_700_000_000_000 + ms)) }
	run := func(name string, from, to int) *runAnswer {
		r := new(runAnswer)
		end := at(to)
		r.Run.ID, r.Run.CreatedAt, r.Run.FinishedAt = name, at(from), &end
		return r
	}
	runs := map[string]*runAnswer{"a": run("a", 0, 1000), "b": run("b", 1010, 2000), "c": run("c", 1500, 2500), "d": run("d", 3000, 4000)}
	accepted := func(name string) *utterance { return &utterance{status: 202, RunID: name} }
	refused := func(name string, ms int) *utterance {
		return &utterance{status: 409, code: "EMBED_RUN_IN_FLIGHT", RunID: name, sent: at(ms)}
	}
	for name, c := range map[string]struct {
		posts []*utterance
		wrong bool
	}{
		"one behind the other":             {[]*utterance{accepted("b"), refused("a", 500), accepted("a"), refused("b", 1990)}, false},
		"one was just over":                {[]*utterance{accepted("a"), refused("a", 1100)}, false},
		"two at a time":                    {[]*utterance{accepted("b"), accepted("c")}, true},
		"two at a time, one before":        {[]*utterance{accepted("c"), accepted("a"), accepted("b")}, true},
		"in flight after its end":          {[]*utterance{accepted("a"), refused("a", 1500)}, true},
		"in flight, and not the thread's":  {[]*utterance{accepted("a"), refused("e", 500)}, true},
		"in flight without a name":         {[]*utterance{accepted("a"), refused("", 500)}, true},
		"accepted, and not the thread's":   {[]*utterance{accepted("e")}, true},
		"a refusal for another reason":     {[]*utterance{accepted("a"), {status: 409, code: "EMBED_THREAD_FULL"}}, false},
		"a while between, and never ended": {[]*utterance{accepted("a"), accepted("d")}, false},
	} {
		if wrong, _, _ := inTime(c.posts, runs); (len(wrong) > 0) != c.wrong {
			t.Errorf("%s: %v", name, wrong)
		}
	}

	f := func(id, kind, data string) client.Frame {
		return client.Frame{ID: id, Type: kind, Data: json.RawMessage(fmt.Sprintf(`{"type":%q%s}`, kind, data))}
	}
	started, a, b := f("1", "run.started", ""), f("2.2", "llm.delta", `,"idx":0,"text":"so"`), f("2.3", "llm.delta", `,"idx":0,"text":"!"`)
	again, done := f("3.3", "llm.delta", `,"idx":1,"text":"so!"`), f("4", "run.completed", `,"status":"succeeded","text":"so!"`)
	whole := []client.Frame{started, f("2.3", "llm.delta", `,"idx":0,"text":"so!"`), done}
	for name, c := range map[string]struct {
		heard []client.Frame
		wrong bool
	}{
		"the whole":            {[]client.Frame{started, a, b, done}, false},
		"a step that was lost": {[]client.Frame{started, a, again, done}, false},
		"live text is lost":    {[]client.Frame{started, a, done}, true},
		"live text is double":  {[]client.Frame{started, a, b, b, done}, true},
		"a frame is lost":      {[]client.Frame{a, b, done}, true},
		"a frame is double":    {[]client.Frame{started, started, a, b, done}, true},
		"the end is lost":      {[]client.Frame{started, a, b}, true},
		"it goes on":           {[]client.Frame{started, a, b, done, f("5", "run.resumed", "")}, true},
	} {
		if wrong := relayed(c.heard, whole); (len(wrong) > 0) != c.wrong {
			t.Errorf("%s: %v", name, wrong)
		}
	}
}
