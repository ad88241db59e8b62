package browser

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/playwright-community/playwright-go"

	"agentsvc/schemas/pause"
	"agentsvc/schemas/skill"
)

// fault is a step that did not land. An error of the session (errLeft, errLost) or of the job's
// context is none.
type fault struct{ skill.Fault }

func (f *fault) Error() string { return string(f.Code) }

func failed(code skill.Code, message string) *fault {
	return &fault{skill.Fault{Code: code, Message: message}}
}

// perform performs one step and says what became of it.
func (s *session) perform(ctx context.Context, st *skill.Step) (skill.StepResult, error) {
	out := skill.StepResult{ID: st.ID, Kind: st.Kind, Label: label(st), Status: skill.StepOK}
	value, there := st.ValueOf(s.job.Values)
	if !there {
		out.Status = skill.StepSkipped
		return out, nil
	}
	limit, cancel := context.WithTimeout(ctx, s.stepTime(st, value))
	defer cancel()
	err := s.act(limit, st, value)
	if err == nil && st.ID != s.job.Definition.CommitStepID {
		err = s.settle(limit)
	}
	if err != nil {
		out.Status, out.Note = skill.StepFailed, s.takeNotes()
		return out, s.told(ctx, st, err)
	}
	if st.ID != s.job.Definition.CommitStepID { // that one's picture is taken when it was answered
		out.Shot = s.shot(ctx, st.ID)
	}
	out.Note = s.takeNotes()
	return out, nil
}

// stepTime is the time of a step; a wait of a number of milliseconds has those besides.
func (s *session) stepTime(st *skill.Step, value string) time.Duration {
	d := s.step
	if n, err := strconv.Atoi(value); err == nil && st.Kind == skill.Wait && n > 0 {
		d += time.Duration(min(n, skill.MaxWait)) * time.Millisecond
	}
	return d
}

// told turns the error of a step into a fault, unless it is one of the session or the job.
func (s *session) told(ctx context.Context, st *skill.Step, err error) error {
	if t := s.trouble(); t != nil {
		return t
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	f := new(fault)
	switch {
	case errors.As(err, &f):
	case errors.Is(err, errLost), errors.Is(err, errLeft):
		return err
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, playwright.ErrTimeout):
		f = failed(skill.CodeStepFailed, "The page did not do this within "+s.step.String()+".")
	default:
		f = failed(skill.CodeStepFailed, "The page did not allow this.")
	}
	f.StepID = st.ID
	return f
}

// label says what a step does, without values and secrets.
func label(st *skill.Step) string {
	on := ""
	if t := st.Target; t != nil {
		if on = t.Text; on == "" {
			on = strings.Join(append(t.Tries(), ""), "")
			if tries := t.Tries(); len(tries) > 0 {
				on = tries[0]
			}
		}
		if r := []rune(on); len(r) > 80 {
			on = string(r[:80]) + "…"
		}
		on = " " + strconv.Quote(skill.Clean(on))
	}
	switch st.Kind {
	case skill.Navigate:
		if host, ok := hostOf(st.Literal()); ok {
			return "Open a page of " + host
		}
		return "Open a page"
	case skill.Click:
		return "Click" + on
	case skill.Type:
		switch {
		case st.Secret:
			return "Type a secret into" + on
		case st.Param != "":
			return "Type " + st.Param + " into" + on
		}
		return "Type into" + on
	case skill.Select:
		if st.Param != "" {
			return "Select " + st.Param + " in" + on
		}
		return "Select in" + on
	case skill.Tick:
		return "Tick" + on
	case skill.Press:
		if on == "" {
			return "Press a key"
		}
		return "Press a key in" + on
	case skill.Wait:
		if on == "" {
			return "Wait"
		}
		return "Wait for" + on
	case skill.Scroll:
		return "Scroll" + on
	}
	return string(st.Kind)
}

func hostOf(url string) (string, bool) {
	_, rest, ok := strings.Cut(url, "://")
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		rest = rest[:i]
	}
	return rest, ok && rest != ""
}

// act does what a step says.
func (s *session) act(ctx context.Context, st *skill.Step, value string) error {
	switch {
	case st.Kind == skill.Navigate:
		return s.goTo(ctx, value)
	case st.Kind == skill.Wait && st.Target == nil:
		n, err := strconv.Atoi(value)
		if err != nil {
			return nil
		}
		t := time.NewTimer(time.Duration(min(n, skill.MaxWait)) * time.Millisecond)
		defer t.Stop()
		select {
		case <-t.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-s.lost:
			return errLost
		case <-s.left:
			return errLeft
		case <-s.e.dead:
			return errLost
		}
	case st.Target == nil && st.Kind == skill.Press:
		return s.do(ctx, func() error { return s.page.Keyboard().Press(value) })
	case st.Target == nil && st.Kind == skill.Scroll:
		return s.do(ctx, func() error {
			_, err := s.page.Evaluate("n => window.scrollBy(0, n)", pixels(value))
			return err
		})
	case st.Target == nil:
		return failed(skill.CodeStepFailed, "The step names no element.")
	}
	el, err := s.locate(ctx, st.Target, st.Kind == skill.Tick)
	if err != nil {
		return err
	}
	switch st.Kind {
	case skill.Wait:
		return nil
	case skill.Click:
		return s.do(ctx, func() error {
			//lint:ignore SA1019 the driver in use waits for navigations by default, and the step waits by itself
			return el.Click(playwright.LocatorClickOptions{Timeout: left(ctx), NoWaitAfter: playwright.Bool(true)})
		})
	case skill.Press:
		return s.do(ctx, func() error {
			//lint:ignore SA1019 the driver in use waits for navigations by default, and the step waits by itself
			return el.Press(value, playwright.LocatorPressOptions{Timeout: left(ctx), NoWaitAfter: playwright.Bool(true)})
		})
	case skill.Scroll:
		return s.do(ctx, func() error {
			if n := pixels(value); n != 0 {
				_, err := el.Evaluate("(e, n) => e.scrollBy(0, n)", n, playwright.LocatorEvaluateOptions{Timeout: left(ctx)})
				return err
			}
			return el.ScrollIntoViewIfNeeded(playwright.LocatorScrollIntoViewIfNeededOptions{Timeout: left(ctx)})
		})
	case skill.Tick:
		return s.tick(ctx, st, el, value)
	case skill.Select:
		return s.choose(ctx, st, el, value)
	case skill.Type:
		return s.fill(ctx, st, el, value)
	}
	return failed(skill.CodeStepFailed, "The step is of an unknown kind.")
}

func pixels(value string) int {
	n, _ := strconv.Atoi(value) // checked when the skill was saved
	return n
}

// left returns the time that ctx leaves, in milliseconds.
func left(ctx context.Context) *float64 {
	at, ok := ctx.Deadline()
	if !ok {
		return ms(time.Minute)
	}
	return ms(time.Until(at))
}

// goTo opens an address of the skill.
func (s *session) goTo(ctx context.Context, url string) error {
	if reason := s.scope.Allows(url); reason != "" {
		s.visit(url)
		return errLeft
	}
	err := s.do(ctx, func() error {
		_, err := s.page.Goto(url, playwright.PageGotoOptions{WaitUntil: playwright.WaitUntilStateDomcontentloaded, Timeout: left(ctx)})
		return err
	})
	f := new(fault)
	switch {
	case err == nil, errors.Is(err, errLeft), errors.Is(err, errLost), errors.Is(err, context.Canceled):
		return err
	case s.proxy.refusedHost(url):
		f = failed(skill.CodeStepFailed, "The outbound guard refuses this address.")
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, playwright.ErrTimeout):
		f = failed(skill.CodeStepFailed, "The page did not load within "+s.step.String()+".")
	case strings.Contains(err.Error(), "net::ERR_ABORTED"):
		f = failed(skill.CodeStepFailed, "The address is no page: it is a download, or the page was left at once.")
	default:
		f = failed(skill.CodeStepFailed, "The page did not load.")
	}
	f.URL = s.secrets.clean(url, maxAnyURL)
	return f
}

// settled waits for one turn of the page's event loop, and returns whether the page has loaded then.
const settled = `() => new Promise(r => setTimeout(r, 0)).then(() => document.readyState !== 'loading')`

// settle waits until what a step began is done: navigations and requests that change something.
func (s *session) settle(ctx context.Context) error {
	// The page is at rest if nothing is in flight after one turn of its event loop: what the step's events began is
	// begun by then. Behind each wait it is looked at again, because a redirect ends one request before it begins
	// the next. A page that navigates meanwhile fails the call.
	for range mostLooks {
		loaded := false
		if err := s.do(ctx, func() error {
			if v, err := s.page.Evaluate(settled, nil); err == nil {
				loaded, _ = v.(bool)
			}
			return nil
		}); err != nil {
			return err
		}
		s.mu.Lock()
		rests := len(s.inFlight) == 0
		s.mu.Unlock()
		if rests && loaded {
			return nil
		}
		if err := s.idle(ctx); err != nil {
			if errors.Is(err, context.DeadlineExceeded) {
				return nil // a page that never rests: the next step finds its target or not
			}
			return err
		}
		err := s.do(ctx, func() error {
			return s.page.WaitForLoadState(playwright.PageWaitForLoadStateOptions{State: playwright.LoadStateDomcontentloaded, Timeout: left(ctx)})
		})
		if err != nil && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, playwright.ErrTimeout)) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// mostLooks is how often settle looks at a page that goes on.
const mostLooks = 4

// locate finds an element: by the first of the selectors that shows one, else by visible text.
// The selector has half a second before a fallback takes its place.
func (s *session) locate(ctx context.Context, l *skill.Locator, hidden bool) (playwright.Locator, error) {
	var tries []playwright.Locator
	for _, sel := range l.Tries() {
		tries = append(tries, s.page.Locator("css="+sel))
	}
	if l.Text != "" {
		tries = append(tries, s.page.GetByText(l.Text))
	}
	for i := range tries {
		if !hidden {
			tries[i] = tries[i].Filter(playwright.LocatorFilterOptions{Visible: playwright.Bool(true)})
		}
		tries[i] = tries[i].First()
	}
	notFound := func() error {
		f := failed(skill.CodeNotFound, "No element was found.")
		f.Selectors = l.Tries()
		if l.Text != "" {
			f.Selectors = append(f.Selectors, "text="+l.Text)
		}
		return f
	}
	if len(tries) == 0 {
		return nil, notFound()
	}
	if len(tries) > 1 { // mostly the first selector is right, and shows its element at once
		n := 0
		if err := s.do(ctx, func() (err error) {
			n, err = tries[0].Count()
			return err
		}); err == nil && n > 0 {
			return tries[0], nil
		}
	}
	either := tries[0]
	for _, t := range tries[1:] {
		either = either.Or(t)
	}
	state := playwright.WaitForSelectorStateVisible
	if hidden {
		state = playwright.WaitForSelectorStateAttached
	}
	wait := func(l playwright.Locator, most *float64) error {
		return s.do(ctx, func() error {
			return l.First().WaitFor(playwright.LocatorWaitForOptions{State: state, Timeout: most})
		})
	}
	for {
		err := wait(either, left(ctx))
		switch {
		case errors.Is(err, errLost), errors.Is(err, errLeft), errors.Is(err, context.Canceled):
			return nil, err
		case ctx.Err() != nil, err != nil && errors.Is(err, playwright.ErrTimeout):
			return nil, notFound()
		case err != nil && isBadSelector(err):
			return nil, notFound()
		case err != nil:
			continue // the page changed under the call
		case len(tries) == 1:
			return tries[0], nil
		}
		switch err := wait(tries[0], ms(500*time.Millisecond)); {
		case err == nil:
			return tries[0], nil
		case errors.Is(err, errLost), errors.Is(err, errLeft):
			return nil, err
		}
		for _, t := range tries {
			found := false
			err := s.do(ctx, func() error {
				n, err := t.Count()
				found = n > 0
				return err
			})
			if errors.Is(err, errLost) || errors.Is(err, errLeft) {
				return nil, err
			}
			if found {
				return t, nil
			}
		}
		if ctx.Err() != nil {
			return nil, notFound()
		}
	}
}

func isBadSelector(err error) bool {
	return strings.Contains(err.Error(), "selector") && !errors.Is(err, playwright.ErrTimeout)
}

// tick sets a checkbox or radio button. One that its site hides behind a label is clicked by
// script.
func (s *session) tick(ctx context.Context, st *skill.Step, el playwright.Locator, value string) error {
	on := value != "false"
	return s.do(ctx, func() error {
		visible, err := el.IsVisible()
		if err != nil {
			return err
		}
		if visible {
			err = el.SetChecked(on, playwright.LocatorSetCheckedOptions{Timeout: left(ctx)})
		} else {
			_, err = el.EvaluateAll("(all, on) => { if (all[0].checked !== on) all[0].click() }", on) // Evaluate waits until it is visible
		}
		if err != nil || st.Param == "" {
			return err
		}
		is, err := el.IsChecked(playwright.LocatorIsCheckedOptions{Timeout: left(ctx)})
		s.read[st.ID] = strconv.FormatBool(is)
		return err
	})
}

// pick finds the option of a value, else of a label; -1 if there is none yet.
const pick = `(e, want) => {
  e = (e.localName === 'label' && e.control) || e;
  const o = Array.from(e.options || []);
  let i = o.findIndex(x => x.value === want && !x.disabled);
  if (i < 0) i = o.findIndex(x => x.label.trim() === want.trim() && !x.disabled);
  return i;
}`

// choose selects an option by its value, else by its label.
func (s *session) choose(ctx context.Context, st *skill.Step, el playwright.Locator, value string) error {
	index := -1
	for {
		err := s.do(ctx, func() error {
			v, err := el.Evaluate(pick, value, playwright.LocatorEvaluateOptions{Timeout: left(ctx)})
			index = number(v)
			return err
		})
		if err != nil {
			return err
		}
		if index >= 0 {
			break
		}
		if !pause.For(ctx, 50*time.Millisecond) { // options that come late
			return failed(skill.CodeStepFailed, "The list has no such option.")
		}
	}
	return s.do(ctx, func() error {
		_, err := el.SelectOption(playwright.SelectOptionValues{Indexes: &[]int{index}}, playwright.LocatorSelectOptionOptions{Timeout: left(ctx)})
		if err != nil || st.Param == "" {
			return err
		}
		s.read[st.ID], err = s.valueOf(el, value, left(ctx))
		return err
	})
}

func number(v any) int {
	switch n := v.(type) {
	case int:
		return n
	case float64:
		return int(n)
	}
	return -1
}

// fill types a text or a secret.
func (s *session) fill(ctx context.Context, st *skill.Step, el playwright.Locator, value string) error {
	if st.Secret {
		secret, err := s.open(st.SecretRef)
		if err != nil {
			return err
		}
		value = secret
		css := st.Target.Tries()
		if st.Target.Text != "" {
			css = append(slices.Clip(css), "")
		}
		s.fields = append(s.fields, secretField{el, css, true})
	}
	return s.do(ctx, func() error {
		if err := el.Fill(value, playwright.LocatorFillOptions{Timeout: left(ctx)}); err != nil {
			return err
		}
		if st.Secret {
			about, err := el.Evaluate("e => {"+field+"return [field(e) === e, field(e).type]}", nil, playwright.LocatorEvaluateOptions{Timeout: left(ctx)})
			if said, _ := about.([]any); err == nil && len(said) == 2 {
				s.fields[len(s.fields)-1].named = said[0] != true
				if said[1] == "password" {
					s.wall = st
				}
			}
			return nil
		}
		if st.Param == "" {
			return nil
		}
		var err error
		s.read[st.ID], err = s.valueOf(el, value, left(ctx))
		return err
	})
}

// field returns the field that is filled for an element: that of its label, if it is none itself.
const field = `const field = e => e.matches('input, textarea, select') ? e : e.closest('label')?.control || e;`

// open opens a secret; its value is redacted from then on.
func (s *session) open(ref string) (string, error) {
	if s.job.Open == nil {
		return "", failed(skill.CodeStepFailed, "The skill has no such secret.")
	}
	secret, err := s.job.Open(ref)
	if err != nil {
		return "", failed(skill.CodeStepFailed, "The secret "+ref+" could not be opened.")
	}
	s.secrets.add(secret)
	return secret, nil
}

// holdsFirst is holds of the first of some elements; null: there is none.
const holdsFirst = `(all, want) => all.length ? (` + holds + `)(all[0], want) : null`

// holds returns what a field holds. Of a list it is the selected option's value, and of one that
// was selected by its label, the label. A field's label stands for the field, as where it is filled.
const holds = `(e, want) => {
  e = (e.localName === 'label' && e.control) || e;
  if (e.type === 'checkbox' || e.type === 'radio') return String(e.checked);
  if (e.options) {
    const o = e.options[e.selectedIndex];
    if (!o) return '';
    return o.value !== want && o.label.trim() === want.trim() ? want : o.value;
  }
  return String('value' in e ? e.value : e.innerText).slice(0, 10000);
}`

func (s *session) valueOf(el playwright.Locator, want string, timeout *float64) (string, error) {
	v, err := el.Evaluate(holds, want, playwright.LocatorEvaluateOptions{Timeout: timeout})
	if err != nil {
		return "", err
	}
	text, ok := v.(string)
	if !ok {
		return "", fmt.Errorf("a field holds no text")
	}
	return text, nil
}
