package wiki

import (
	"bytes"
	"errors"
	"io"
	"strings"

	"golang.org/x/net/html"
)

// blocks are elements of the storage format whose content stands in a block of its own.
var blocks = map[string]string{
	"ac:plain-text-body":  "pre",
	"ac:rich-text-body":   "div",
	"ac:structured-macro": "div",
	"ac:macro":            "div",
	"ac:task-list":        "ul",
	"ac:task":             "li",
	"ac:layout":           "div",
	"ac:layout-section":   "div",
	"ac:layout-cell":      "div",
}

// silent are elements of the storage format whose content is no text of the page.
var silent = map[string]bool{"ac:task-id": true, "ac:task-status": true, "ac:task-uuid": true, "ac:placeholder": true, "script": true, "style": true}

// titled are parameters of macros that people read.
var titled = map[string]bool{"title": true, "name": true}

const (
	// maxToken bounds a tag, and a text between two tags, in bytes. A tag of attributes alone takes some fifty
	// times its size in memory.
	maxToken = 2 << 20
	// maxAttributes is how many attributes of a tag are read; the format has a few.
	maxAttributes = 100
)

// errToken: the page holds a tag or a text longer than maxToken.
var errToken = errors.New("a tag or a text of the page is larger than 2 MiB")

// ToHTML returns a page in the storage format as a document of plain HTML. The elements of the
// format's own (ac:, ri:) become blocks or vanish, and all text stays: that of CDATA sections, of
// code, of links to pages by their title. The error is errToken.
func ToHTML(title, storage string) ([]byte, error) {
	var b bytes.Buffer
	b.Grow(len(storage) + len(storage)/8 + 128)
	b.WriteString(`<!DOCTYPE html><html><head><meta charset="utf-8"><title>` + html.EscapeString(title) + "</title></head><body>\n")
	b.WriteString("<h1>" + html.EscapeString(title) + "</h1>\n")
	z := html.NewTokenizer(strings.NewReader(storage))
	z.SetMaxBuf(maxToken)
	z.AllowCDATA(true)
	skip, depth := "", 0 // the silent element, and how deep it is nested in itself
	for {
		kind := z.Next()
		if kind == html.ErrorToken {
			if z.Err() != io.EOF {
				return nil, errToken
			}
			break
		}
		if kind == html.CommentToken || kind == html.DoctypeToken {
			continue
		}
		t := token(z, kind)
		if skip != "" {
			switch {
			case kind == html.StartTagToken && t.Data == skip:
				depth++
			case kind == html.EndTagToken && t.Data == skip:
				if depth--; depth == 0 {
					skip = ""
				}
			}
			continue
		}
		switch kind {
		case html.TextToken:
			b.WriteString(html.EscapeString(t.Data))
		case html.StartTagToken:
			if silent[t.Data] || t.Data == "ac:parameter" && !titled[attribute(t, "ac:name")] {
				skip, depth = t.Data, 1
				continue
			}
			start(&b, t)
		case html.SelfClosingTagToken:
			start(&b, t)
			if !isVoid(t.Data) {
				end(&b, t.Data)
			}
		case html.EndTagToken:
			end(&b, t.Data)
		}
	}
	b.WriteString("\n</body></html>\n")
	return b.Bytes(), nil
}

// token returns the token that was read, with its first attributes.
func token(z *html.Tokenizer, kind html.TokenType) html.Token {
	t := html.Token{Type: kind}
	if kind == html.TextToken {
		t.Data = string(z.Text())
		return t
	}
	name, more := z.TagName()
	t.Data = string(name)
	for more && len(t.Attr) < maxAttributes {
		var key, value []byte
		key, value, more = z.TagAttr()
		t.Attr = append(t.Attr, html.Attribute{Key: string(key), Val: string(value)})
	}
	return t
}

func start(b *bytes.Buffer, t html.Token) {
	if element, ok := blocks[t.Data]; ok {
		b.WriteString("<" + element + ">")
		return
	}
	switch {
	case t.Data == "ac:parameter":
		b.WriteString("<p>")
	case t.Data == "ri:page" || t.Data == "ri:attachment" || t.Data == "ri:blog-post":
		for _, name := range []string{"ri:content-title", "ri:filename"} {
			if text := attribute(t, name); text != "" {
				b.WriteString(html.EscapeString(text) + " ")
			}
		}
	case strings.Contains(t.Data, ":"):
	default:
		kept := t.Attr[:0]
		for _, a := range t.Attr {
			switch a.Key {
			case "href", "colspan", "rowspan", "alt", "title", "datetime", "start", "lang":
				kept = append(kept, a)
			}
		}
		t.Attr, t.Type = kept, html.StartTagToken
		b.WriteString(t.String())
		if t.Data == "time" { // a date has no text but its attribute
			b.WriteString(html.EscapeString(attribute(t, "datetime")))
		}
	}
}

func end(b *bytes.Buffer, name string) {
	if element, ok := blocks[name]; ok {
		b.WriteString("</" + element + ">")
		return
	}
	switch {
	case name == "ac:parameter":
		b.WriteString("</p>")
	case strings.Contains(name, ":"):
	default:
		b.WriteString("</" + html.EscapeString(name) + ">")
	}
}

func isVoid(name string) bool {
	switch name {
	case "br", "hr", "img", "col", "input", "wbr":
		return true
	}
	return false
}

func attribute(t html.Token, name string) string {
	for _, a := range t.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}
