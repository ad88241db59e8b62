package browser

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/playwright-community/playwright-go"

	"agentsvc/schemas/id"
	"agentsvc/schemas/pause"
	"agentsvc/schemas/skill"
)

//go:embed page/teach.js
var teachJS string

// Lesson is a skill that a person showed in a browser on this machine.
type Lesson struct {
	b       *Browser
	rec     skill.Recording
	secrets map[string]string
}

// Recording returns what was recorded. The caller may mark it.
func (l *Lesson) Recording() *skill.Recording { return &l.rec }

// Secrets returns what was typed into password fields, by secret_ref.
func (l *Lesson) Secrets() map[string]string { return l.secrets }

// Replay performs the recording as a dry run in a fresh page; empty values are those that were
// recorded.
func (l *Lesson) Replay(ctx context.Context, values json.RawMessage) (*skill.Replay, error) {
	if len(values) == 0 {
		values = l.rec.Examples()
	}
	return l.b.replay(ctx, l.rec.Definition(), values, l.secrets, &skill.Job{Tenant: id.TenantID{UUID: id.NewAnywhere()}})
}

// Close ends the browser.
func (l *Lesson) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return l.b.Close(ctx)
}

// deed is what a person did in a page, as the page tells.
type deed struct {
	Kind  skill.ActionKind `json:"kind"`
	At    float64          `json:"at"` // milliseconds: they may arrive in another order
	Value *skill.Text      `json:"value"`
	About json.RawMessage  `json:"about"`

	came time.Time
}

// Limits of what pages tell.
const (
	maxDeeds  = 200
	deedsWait = 300 * time.Millisecond // until those that happened before have arrived
)

// Teach opens a page and records what a person does in it by hand, until done is closed or the
// window is. said is told of each step. An Alt-click picks a result field and an Alt-Shift-click
// marks the commit step; neither does anything on the page. Popups are closed, as in every run.
func (b *Browser) Teach(ctx context.Context, url string, said func(string), done <-chan struct{}) (*Lesson, error) {
	return b.teach(ctx, url, said, done, func(playwright.Page) {})
}

// teach is Teach, with a function that is told of the page before it is opened.
func (b *Browser) teach(ctx context.Context, url string, said func(string), done <-chan struct{}, opened func(playwright.Page)) (*Lesson, error) {
	l := &Lesson{b: b, secrets: map[string]string{}}
	l.rec.StartURL = url
	var (
		mu    sync.Mutex // guards what is below
		hosts []string
		deeds []deed
	)
	visited := func(at string) {
		mu.Lock()
		defer mu.Unlock()
		if len(hosts) < 1000 {
			hosts = append(hosts, at)
		}
	}
	job := &skill.Job{Definition: &skill.Definition{}}
	s, err := b.openAt(ctx, job, skill.Scope{AnyHost: true}, visited, func() {}, 12*time.Hour)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	s.byHand.Store(true)
	limit, cancel := context.WithTimeout(ctx, launchTimeout)
	defer cancel()
	err = s.do(limit, func() error {
		err := s.context.ExposeBinding("svcTaught", func(_ *playwright.BindingSource, args ...any) any {
			var d deed
			text := ""
			if len(args) == 1 {
				text, _ = args[0].(string)
			}
			if len(text) > 2*maxFound || json.Unmarshal([]byte(text), &d) != nil {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			if len(deeds) < maxDeeds {
				d.came = time.Now()
				deeds = append(deeds, d)
			}
			return nil
		})
		if err != nil {
			return err
		}
		return s.context.AddInitScript(playwright.Script{Content: playwright.String("(() => {" + elementJS + teachJS + "})()")})
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %s", ErrUnavailable, brief(err))
	}
	opened(s.page)
	if err := s.goTo(limit, url); err != nil {
		f := new(fault)
		if errors.As(err, &f) {
			return nil, errors.New(f.Message)
		}
		return nil, err
	}
	// record takes the deeds that have waited long enough, or all, in the order in which they
	// happened.
	record := func(all bool) {
		mu.Lock()
		slices.SortStableFunc(deeds, func(a, b deed) int { return cmp.Compare(a.At, b.At) })
		n := 0
		for n < len(deeds) && (all || time.Since(deeds[n].came) >= deedsWait) {
			n++
		}
		due := slices.Clone(deeds[:n])
		deeds = append([]deed{}, deeds[n:]...)
		for _, at := range hosts {
			l.rec.Visit(at)
		}
		hosts = hosts[:0]
		mu.Unlock()
		for i := range due {
			if line, err := l.add(&due[i]); err != nil {
				said("not recorded: " + err.Error())
			} else {
				said(line)
			}
		}
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			record(false)
			continue
		case <-done:
		case <-s.lost:
		case <-s.e.dead:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		break
	}
	pause.For(ctx, deedsWait) // a deed just before the end may still be in flight
	record(true)
	return l, nil
}

// add records a deed and says what it was, without values.
func (l *Lesson) add(d *deed) (string, error) {
	about, err := parseFound(string(d.About))
	if err != nil {
		return "", err
	}
	el := &skill.Element{Type: skill.ParamType(about.Kind), Options: slices.DeleteFunc(about.Options, l.knows)}
	for _, sel := range about.Selectors {
		if k := (&skill.Locator{Selector: sel}); k.Check() != nil || l.knows(sel) || len(el.Locator.Tries()) == maxKept {
			continue
		}
		if el.Locator.Selector == "" {
			el.Locator.Selector = sel
		} else {
			el.Locator.Candidates = append(el.Locator.Candidates, sel)
		}
	}
	if text := skill.Clean(about.Text); len(text) < 400 && !strings.Contains(text, "{{") && !l.knows(text) {
		el.Locator.Text = text
	}
	if el.Locator.Selector == "" && el.Locator.Text == "" {
		return "", errors.New("no selector finds this element alone")
	}
	el.Secret = about.Secret || about.Field && l.rec.SecretIn(&el.Locator) != ""
	a := &skill.Action{Kind: d.Kind, Value: d.Value}
	switch d.Kind {
	case skill.ActPick:
		name := fmt.Sprintf("field_%d", len(l.rec.Fields)+1)
		return "result field " + name + ": " + el.Locator.Selector, l.rec.Pick(name, el.Locator, "", "")
	case skill.ActCommit:
		a.Kind, a.Commit = skill.ActionKind(skill.Click), true
	case skill.ActionKind(skill.Click), skill.ActionKind(skill.Type), skill.ActionKind(skill.Select), skill.ActionKind(skill.Tick), skill.ActionKind(skill.Press):
		if a.Kind.Step() == skill.Click {
			a.Value = nil
		}
	default:
		return "", errors.New("the page told of something unknown")
	}
	st, err := l.rec.Plan(a, el, about.Wall)
	if err != nil {
		return "", err
	}
	if st.Secret {
		l.secrets[st.SecretRef] = a.Text()
	}
	l.rec.Add(st, el)
	if a.Commit {
		err = l.rec.Commit(st.ID)
		return st.ID + "  commit step, not performed: " + label(&st), err
	}
	return st.ID + "  " + label(&st), err
}

// knows reports whether a text holds a secret that was typed.
func (l *Lesson) knows(text string) bool {
	for _, secret := range l.secrets {
		if len(secret) > 2 && strings.Contains(text, secret) {
			return true
		}
	}
	return false
}
