package cli

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Text from others is shown so that it can neither hide anything nor control a terminal.

// Shorten cuts a line between characters.
func Shorten(s string, most int) string {
	n := 0
	for i := range s {
		if n++; n > most {
			return fmt.Sprintf("%s… (%d more characters)", s[:i], utf8.RuneCountInString(s[i:]))
		}
	}
	return s
}

// Visible returns s on one line with escapes for control characters, for characters that
// change the direction of the text, have no width or look blank, and for invalid bytes.
func Visible(s string) string {
	return escape(s, func(r rune) bool { return strconv.IsPrint(r) && !blank(r) })
}

// Harmless keeps the lines of a text and its joined characters, and escapes characters that
// move the cursor, control the terminal or change the direction of the text. JSON stays the same
// JSON: such characters are in its strings only, and the escapes are those of JSON.
func Harmless(s string) string {
	return escape(s, func(r rune) bool {
		return r == '\n' || r == '\t' || r >= ' ' && r != 0x7f && (r < 0x80 || r > 0x9f) && !turns(r)
	})
}

// turns reports whether r changes the direction of the text around it.
func turns(r rune) bool {
	return r == 0x061c || r == 0x200e || r == 0x200f || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069
}

// blank reports whether r counts as printable but shows nothing.
func blank(r rune) bool {
	switch {
	case r == 0x034f, r == 0x115f, r == 0x1160, r == 0x17b4, r == 0x17b5, r == 0x2800, r == 0x3164, r == 0xffa0:
		return true
	}
	return r >= 0x180b && r <= 0x180f || r >= 0xfe00 && r <= 0xfe0f || r >= 0xe0100 && r <= 0xe01ef
}

func escape(s string, shown func(rune) bool) string {
	clean := true
	for _, r := range s {
		if r == utf8.RuneError || !shown(r) {
			clean = false
			break
		}
	}
	if clean {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case shown(r):
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		i += size
	}
	return b.String()
}
