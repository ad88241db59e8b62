package browser

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/url"
	"slices"
	"time"

	"github.com/playwright-community/playwright-go"
)

const shotTimeout = 5 * time.Second

// Selector engines that the service runs in an isolated world of the page. A page's own scripts could replace any function of the
// page's world, and would then see the secrets or return false answers.
const (
	exposedEngine = "svc-exposed"
	titleEngine   = "svc-title"
)

// engines are the sources of the engines. A page may name an element so that it hides a property of its document or of a
// form, so those are taken from the prototypes.
var engines = map[string]string{
	// It finds as many nodes as the sum of what must not be in a picture: 1 if the page has a password field, 2 if a field
	// holds a secret, 4 if a text does, 8 if it has frames, 16 if a field may be one that a secret was typed into, 32 if it
	// has frames of other sites, into which it cannot look, 256 if something shows a secret that is neither a text nor a value: an
	// option, or what an attribute says. 128 tells nothing of that: the page is not at rest, because something is animated or fonts
	// are missing yet.
	exposedEngine: `{ queryAll(_, about) {
  const { secrets, fields } = JSON.parse(decodeURIComponent(about));
  const get = (of, name) => Function.prototype.call.bind(Object.getOwnPropertyDescriptor(of.prototype, name).get);
  const name = get(Element, 'localName'), inside = get(Element, 'shadowRoot'), bodyOf = get(Document, 'body');
  let password = false, holds = false, says = false, framed = false, typed = false, blind = false, drawn = false;
  const shows = text => secrets.some(s => text.toLowerCase().includes(s.toLowerCase()));
  const look = (root, of) => {
    const find = css => of.prototype.querySelectorAll.call(root, css);
    for (const f of fields) { try { typed = typed || f === '' || find(f).length > 0 } catch { typed = true } }
    for (const e of find('*')) {
      const shadow = inside(e), tag = name(e);
      if (shadow) { look(shadow, DocumentFragment); says = says || shows(shadow.textContent) }
      if (tag === 'input' && e.type === 'password') password = true;
      if ((tag === 'input' || tag === 'textarea') && shows(String(e.value))) holds = true;
      if (secrets.length > 0 && (tag === 'option' && shows(e.textContent) || ['placeholder', 'alt', 'label'].some(a => shows(Element.prototype.getAttribute.call(e, a) || '')))) drawn = true;
      if (tag === 'iframe' || tag === 'frame' || tag === 'object' || tag === 'embed') { framed = true; try { if (e.contentDocument) look(e.contentDocument, Document); else blind = true } catch { blind = true } }
    }
  };
  look(document, Document);
  const body = bodyOf(document);
  const moves = Document.prototype.getAnimations.call(document).length > 0 || get(Document, 'fonts')(document).status === 'loading';
  says = says || secrets.length > 0 && body !== null && shows(body.textContent);
  return Array.from({ length: (password ? 1 : 0) + (holds ? 2 : 0) + (says ? 4 : 0) + (framed ? 8 : 0) + (typed ? 16 : 0) + (blind ? 32 : 0) + (drawn ? 256 : 0) + (moves ? 128 : 0) }, () => new Comment(''));
} }`,
	// It finds an element with the beginning of the page's title.
	titleEngine: `{ queryAll() {
  const e = Document.prototype.createElement.call(document, 'p');
  e.setAttribute('title', Object.getOwnPropertyDescriptor(Document.prototype, 'title').get.call(document).slice(0, 2000));
  return [e];
} }`,
}

// addEngines makes the engines known to a driver.
func addEngines(to playwright.Selectors) error {
	for name, source := range engines {
		if err := to.Register(name, playwright.Script{Content: playwright.String(source)}, playwright.SelectorsRegisterOptions{ContentScript: playwright.Bool(true)}); err != nil {
			return err
		}
	}
	return nil
}

// title returns the beginning of the page's title as it is reported.
func (s *session) title(ctx context.Context) (string, error) {
	text, err := s.page.Locator(titleEngine+"=x").GetAttribute("title", playwright.LocatorGetAttributeOptions{Timeout: left(ctx)})
	return s.secrets.clean(text, maxTitle), err
}

// secretField is a field that a secret was typed into.
type secretField struct {
	at    playwright.Locator
	css   []string // what finds it; "" stands for something else than CSS
	named bool     // at may be the label of the field
}

const allFields = "css=input, textarea"

// private is what no picture shows: secrets, and the fields that they were typed into.
type private struct {
	values []string
	typed  []secretField
}

func (s *session) private() private {
	return private{slices.Clone(s.secrets.values), slices.Clone(s.fields)}
}

// selector asks what a page exposes of it.
func (p *private) selector() string {
	fields := []string{}
	for _, f := range p.typed {
		fields = append(fields, f.css...)
	}
	about, err := json.Marshal(map[string]any{"secrets": append([]string{}, p.values...), "fields": fields})
	if err != nil {
		panic(err) // texts
	}
	return exposedEngine + "=" + url.PathEscape(string(about)) // of which no character means anything to the driver
}

// shot stores a picture of the page and returns its key, "" if there is none: no picture is taken
// while a password field is on the page, and a picture that cannot be taken fails nothing. Once the store of files did not answer
// in time, the session takes no more.
func (s *session) shot(ctx context.Context, name string) string {
	if s.job.Keep == nil || s.unkept {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, min(shotTimeout, s.step))
	defer cancel()
	var jpeg []byte
	p := s.private()
	if err := s.do(ctx, func() (err error) {
		jpeg, err = s.picture(ctx, p, false)
		return err
	}); err != nil || jpeg == nil {
		return ""
	}
	key, err := s.job.Keep(ctx, name, jpeg)
	if err != nil {
		s.unkept = ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded)
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
		jpeg, err = s.picture(ctx, p, true)
		return err
	})
	return jpeg
}

// picture takes a picture in which whatever shows a secret is painted over: the fields that it was typed
// into, texts, all fields if another one holds it, and frames, into which it does not look. The page is looked at again
// behind the picture, so that nothing is in it that came meanwhile. nil: a password field is there (unless passwords says
// that they are painted over), or the page does not rest.
func (s *session) picture(ctx context.Context, p private, passwords bool) ([]byte, error) {
	ask := s.page.Locator(p.selector())
	look := func() (int, error) {
		n, err := ask.Count()
		return s.withFrames(n), err
	}
	seen, err := look()
	if err != nil {
		return nil, err
	}
	for again := false; ; again = true {
		var mask []playwright.Locator
		if passwords {
			mask = append(mask, s.page.Locator("css=input[type=password]"))
		} else if seen&1 != 0 {
			return nil, nil
		}
		if seen&16 != 0 {
			for _, f := range p.typed {
				if f.named {
					f.at = s.page.Locator(allFields)
				}
				mask = append(mask, f.at)
			}
		}
		if seen&4 != 0 {
			for _, secret := range p.values {
				mask = append(mask, s.page.GetByText(secret))
			}
		}
		if seen&8 != 0 && len(p.values) > 0 || seen&64 != 0 {
			mask = append(mask, s.page.Locator("css=iframe, frame, object, embed"))
		}
		if seen&2 != 0 {
			mask = append(mask, s.page.Locator(allFields))
		}
		if seen&256 != 0 {
			mask = append(mask, s.page.Locator(allFields+", select, img, area"))
		}
		jpeg, err := s.taken(ctx, mask, seen&(8|128) == 0)
		if err != nil {
			return nil, err
		}
		after, err := look()
		switch {
		case err == nil && after&^seen&^128 == 0:
			return jpeg, nil
		case again:
			return nil, nil
		case err != nil: // the page navigates
			if after, err = look(); err != nil {
				return nil, err
			}
		}
		seen = after
	}
}

// taken takes a picture in which some elements are painted over. Without any, and of a page that rests, Chromium is asked
// by itself: the library would change the page's styles before and take that back behind it, so that the page is drawn three times.
func (s *session) taken(ctx context.Context, mask []playwright.Locator, rests bool) ([]byte, error) {
	if len(mask) > 0 || !rests {
		return s.page.Screenshot(playwright.PageScreenshotOptions{Type: playwright.ScreenshotTypeJpeg, Quality: playwright.Int(quality), Mask: mask, MaskColor: playwright.String("#333333"),
			Animations: playwright.ScreenshotAnimationsDisabled, Timeout: left(ctx)})
	}
	answer, err := s.devtools.Send("Page.captureScreenshot", map[string]any{"format": "jpeg", "quality": quality})
	if err != nil {
		return nil, err
	}
	picture, _ := answer.(map[string]any)
	text, _ := picture["data"].(string)
	if text == "" {
		return nil, errors.New("the browser gave no picture")
	}
	return base64.StdEncoding.DecodeString(text)
}

const quality = 60 // of pictures

// Frames of other sites have frameWait to say whether they have a password field.
const (
	maxFrames = 30
	frameWait = 300 * time.Millisecond
)

// withFrames adds to what a page exposes what its frames of other sites do: 1 if one has a password field, 64
// if that is not known of one, or if it has one that has not been painted over.
func (s *session) withFrames(seen int) int {
	if seen&32 == 0 {
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
	ask := (&private{}).selector()
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
			n, err := f.Locator(ask).Count()
			answers <- [2]bool{n&1 != 0, err != nil}
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
