package browser

import (
	"context"
	"slices"
	"time"

	"github.com/playwright-community/playwright-go"
)

const shotTimeout = 5 * time.Second

// exposed says what of the page must not be in a picture, as a sum: 1 if it has a password field,
// 2 if a field holds a secret, 4 if a text does, 8 if it has frames, 16 if a field may be one that a
// secret was typed into, 32 if it has frames of other sites, into which it cannot look.
const exposed = `({ secrets, fields }) => {
  let password = false, holds = false, framed = false, typed = false, blind = false;
  const shows = text => secrets.some(s => text.toLowerCase().includes(s.toLowerCase()));
  const look = root => {
    for (const f of fields) { try { typed = typed || f === '' || root.querySelector(f) !== null } catch { typed = true } }
    for (const e of root.querySelectorAll('*')) {
      if (e.shadowRoot) look(e.shadowRoot);
      if (e.localName === 'input' && e.type === 'password') password = true;
      if ((e.localName === 'input' || e.localName === 'textarea') && shows(String(e.value))) holds = true;
      if (e.localName === 'iframe' || e.localName === 'frame') { framed = true; try { if (e.contentDocument) look(e.contentDocument); else blind = true } catch { blind = true } }
    }
  };
  look(document);
  const text = secrets.length > 0 && document.body ? shows(document.body.textContent) : false;
  return (password ? 1 : 0) + (holds ? 2 : 0) + (text ? 4 : 0) + (framed ? 8 : 0) + (typed ? 16 : 0) + (blind ? 32 : 0);
}`

// titled returns the page's title and exposed.
const titled = `about => [document.title.slice(0, 2000), (` + exposed + `)(about)]`

// settled waits for one turn of the page's event loop and returns exposed then, or -1 while the page
// still loads.
const settled = `about => new Promise(r => setTimeout(r, 0)).then(() => document.readyState === 'loading' ? -1 : (` + exposed + `)(about))`

// secretField is a field that a secret was typed into.
type secretField struct {
	at  playwright.Locator
	css []string // what finds it; "" stands for something else than CSS
}

// private is what no picture shows: secrets, and the fields that they were typed into.
type private struct {
	values []string
	typed  []secretField
}

func (s *session) private() private {
	return private{slices.Clone(s.secrets.values), slices.Clone(s.fields)}
}

// about is the argument of exposed.
func (p *private) about() map[string]any {
	fields := []string{}
	for _, f := range p.typed {
		fields = append(fields, f.css...)
	}
	return map[string]any{"secrets": append([]string{}, p.values...), "fields": fields}
}

// shot stores a picture of the page and returns its key, "" if there is none: no picture is taken
// while a password field is on the page, and a picture that cannot be taken fails nothing.
func (s *session) shot(ctx context.Context, name string) string {
	if s.job.Keep == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, min(shotTimeout, s.step))
	defer cancel()
	var jpeg []byte
	seen, p := s.seen, s.private()
	s.seen = unseen
	if err := s.do(ctx, func() (err error) {
		jpeg, err = s.picture(ctx, seen, p, false)
		return err
	}); err != nil || jpeg == nil {
		return ""
	}
	key, err := s.job.Keep(name, jpeg)
	if err != nil {
		s.note("the screenshot could not be stored")
		return ""
	}
	s.shots++
	return key
}

// snap takes a picture for the person who records, in which password fields are painted over too; nil
// if that cannot be done.
func (s *session) snap(ctx context.Context) (jpeg []byte) {
	p := s.private()
	_ = s.do(ctx, func() (err error) {
		jpeg, err = s.picture(ctx, unseen, p, true)
		return err
	})
	return jpeg
}

// picture takes a picture in which whatever shows a secret is painted over: the fields that it was typed
// into, texts, all fields if another one holds it, and frames, into which it does not look. What the page was just seen to
// expose may be given. The page is looked at again behind the picture, so that nothing is in it that came
// meanwhile. nil: a password field is there (unless passwords says that they are painted over), or the page does not rest.
func (s *session) picture(ctx context.Context, seen int, p private, passwords bool) ([]byte, error) {
	look := func() (int, error) {
		v, err := s.page.Evaluate(exposed, p.about())
		return s.withFrames(number(v)), err
	}
	again := false
	for seen = s.withFrames(seen); ; {
		if seen < 0 {
			var err error
			if seen, err = look(); err != nil {
				return nil, err
			}
		}
		var mask []playwright.Locator
		if passwords {
			mask = append(mask, s.page.Locator("css=input[type=password]"))
		} else if seen&1 != 0 {
			return nil, nil
		}
		if seen&16 != 0 {
			for _, f := range p.typed {
				mask = append(mask, f.at)
			}
		}
		if seen&4 != 0 {
			for _, secret := range p.values {
				mask = append(mask, s.page.GetByText(secret))
			}
		}
		if seen&8 != 0 && len(p.values) > 0 || seen&64 != 0 {
			mask = append(mask, s.page.Locator("css=iframe, frame"))
		}
		if seen&2 != 0 {
			mask = append(mask, s.page.Locator("css=input, textarea"))
		}
		jpeg, err := s.page.Screenshot(playwright.PageScreenshotOptions{Type: playwright.ScreenshotTypeJpeg, Quality: playwright.Int(60), Mask: mask, MaskColor: playwright.String("#333333"),
			Animations: playwright.ScreenshotAnimationsDisabled, Timeout: left(ctx)})
		if err != nil {
			return nil, err
		}
		after, err := look()
		switch {
		case err == nil && after&^seen == 0:
			return jpeg, nil
		case again:
			return nil, nil
		case err != nil: // the page navigates
			after = unseen
		}
		seen, again = after, true
	}
}

// Frames of other sites have frameWait to say whether they have a password field.
const (
	maxFrames = 30
	frameWait = 300 * time.Millisecond
)

// withFrames adds to what a page exposes what its frames of other sites do: 1 if one has a password field, 64
// if that is not known of one, or if it has one that has not been painted over.
func (s *session) withFrames(seen int) int {
	if seen < 0 || seen&32 == 0 {
		return seen
	}
	password, quiet := s.frames()
	if password {
		seen |= 1 | 64
	}
	if quiet {
		seen |= 64
	}
	return seen
}

// frames asks the page's frames whether they have a password field. quiet: one of them did not answer.
func (s *session) frames() (password, quiet bool) {
	all := s.page.Frames()
	if len(all) > maxFrames {
		return false, true
	}
	answers := make(chan [2]bool, len(all))
	asked := 0
	for _, f := range all {
		if f == s.page.MainFrame() {
			continue
		}
		asked++
		s.spawn(func() {
			defer func() {
				if recover() != nil { // the library panics on answers that it does not expect
					answers <- [2]bool{false, true}
				}
			}()
			v, err := f.Evaluate("() => document.querySelector('input[type=password]') !== null", nil)
			has, _ := v.(bool)
			answers <- [2]bool{has, err != nil}
		})
	}
	late := time.NewTimer(frameWait)
	defer late.Stop()
	for range asked {
		select {
		case a := <-answers:
			password, quiet = password || a[0], quiet || a[1]
		case <-late.C:
			return password, true
		}
	}
	return password, quiet
}
