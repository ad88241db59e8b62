package browser

import (
	"errors"

	"github.com/playwright-community/playwright-go"

	"agentsvc/transport/browser/site"
)

// plain cancels an order as a script would: the same steps and a picture after each, no
// bounds, no redaction, no record.
func plain(e *engine, w *world, proxy string) error {
	c, p, err := plainPage(e, proxy)
	if err != nil {
		return err
	}
	defer c.Close()
	shot := func(err error) error {
		_, err2 := p.Screenshot(playwright.PageScreenshotOptions{Type: playwright.ScreenshotTypeJpeg, Quality: playwright.Int(60)})
		return errors.Join(err, err2)
	}
	_, err = p.Goto(w.url + "/login")
	err = errors.Join(err, p.Locator("#user").Fill(site.User), p.Locator("#password").Fill(site.Password), shot(p.Locator("#sign-in").Click()))
	_, err2 := p.Goto(w.url + "/orders/1001")
	err = errors.Join(err, shot(err2), shot(p.Locator("#cancel").Click()))
	_, err2 = p.Locator("#reason").SelectOption(playwright.SelectOptionValues{Labels: &[]string{"The customer asked"}})
	err = errors.Join(err, shot(err2), shot(p.Locator("#refund").Fill("49.9")), shot(p.Locator("#note").Fill("as told by phone")), shot(p.Locator("#notify").Check()), shot(nil),
		shot(p.Locator("#confirm").Click()), p.Locator("#done").WaitFor())
	_, err2 = p.Locator("#total").TextContent()
	return errors.Join(err, err2, shot(nil))
}

// plainPage makes a context and its page as a script would.
func plainPage(e *engine, proxy string) (playwright.BrowserContext, playwright.Page, error) {
	c, err := e.browser.NewContext(playwright.BrowserNewContextOptions{Viewport: &playwright.Size{Width: 1024, Height: 720}, Proxy: &playwright.Proxy{Server: proxy, Bypass: playwright.String("<-loopback>")}})
	if err != nil {
		return nil, nil, err
	}
	c.SetDefaultTimeout(10_000)
	p, err := c.NewPage()
	if err != nil {
		_ = c.Close()
	}
	return c, p, err
}
