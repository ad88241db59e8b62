package browser

import (
	"context"
	"time"

	"github.com/playwright-community/playwright-go"
)

const shotTimeout = 5 * time.Second

// exposed says what of the page must not be in a picture, as a sum: 1 if it has a password field,
// 2 if a field holds a secret, 4 if a text does, 8 if it has frames, into which it cannot look.
const exposed = `secrets => {
  let password = false, holds = false, framed = false;
  const shows = text => secrets.some(s => text.toLowerCase().includes(s.toLowerCase()));
  const look = root => {
    for (const e of root.querySelectorAll('*')) {
      if (e.shadowRoot) look(e.shadowRoot);
      if (e.localName === 'input' && e.type === 'password') password = true;
      if ((e.localName === 'input' || e.localName === 'textarea') && shows(String(e.value))) holds = true;
      if (e.localName === 'iframe' || e.localName === 'frame') { framed = true; try { if (e.contentDocument) look(e.contentDocument) } catch {} }
    }
  };
  look(document);
  const text = secrets.length > 0 && document.body ? shows(document.body.textContent) : false;
  return (password ? 1 : 0) + (holds ? 2 : 0) + (text ? 4 : 0) + (framed ? 8 : 0);
}`

// shot stores a picture of the page and returns its key, "" if there is none: no picture is taken
// while a password field is on the page, and a picture that cannot be taken fails nothing.
func (s *session) shot(ctx context.Context, name string) string {
	if s.job.Keep == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, min(shotTimeout, s.step))
	defer cancel()
	var jpeg []byte
	if err := s.do(ctx, func() error {
		values := s.secrets.values
		if values == nil {
			values = []string{}
		}
		v, err := s.page.Evaluate(exposed, values)
		if err != nil || number(v)&1 != 0 {
			return err
		}
		// Whatever shows a secret is painted over: the fields it was typed into, texts, and all
		// fields if another holds one.
		mask := append([]playwright.Locator{}, s.fields...)
		if number(v)&4 != 0 {
			for _, secret := range values {
				mask = append(mask, s.page.GetByText(secret))
			}
		}
		if number(v)&8 != 0 && len(values) > 0 {
			mask = append(mask, s.page.Locator("css=iframe"))
		}
		if number(v)&2 != 0 {
			mask = append(mask, s.page.Locator("css=input, textarea"))
		}
		picture, err := s.page.Screenshot(playwright.PageScreenshotOptions{Type: playwright.ScreenshotTypeJpeg, Quality: playwright.Int(60), Mask: mask, MaskColor: playwright.String("#333333"),
			Animations: playwright.ScreenshotAnimationsDisabled, Timeout: left(ctx)})
		if err == nil {
			jpeg = picture
		}
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
