package pdf

import (
	"strconv"
	"strings"
	"unicode/utf16"

	"golang.org/x/text/encoding/charmap"
	"golang.org/x/text/unicode/norm"
)

// glyphNames are the characters of glyphs whose names do not say them.
var glyphNames = pairs(`space   exclam ! quotedbl " numbersign # dollar $ percent % ampersand & quotesingle ' quoteright ’ quoteleft ‘
parenleft ( parenright ) asterisk * plus + comma , hyphen - period . slash / zero 0 one 1 two 2 three 3 four 4 five 5 six 6 seven 7
eight 8 nine 9 colon : semicolon ; less < equal = greater > question ? at @ bracketleft [ backslash \ bracketright ] asciicircum ^
underscore _ grave ` + "`" + ` braceleft { bar | braceright } asciitilde ~ exclamdown ¡ cent ¢ sterling £ fraction ⁄ yen ¥ florin ƒ section §
currency ¤ quotedblleft “ quotedblright ” guillemotleft « guillemotright » guilsinglleft ‹ guilsinglright › fi fi fl fl ff ff ffi ffi ffl ffl
endash – emdash — dagger † daggerdbl ‡ periodcentered · middot · paragraph ¶ bullet • quotesinglbase ‚ quotedblbase „ ellipsis … perthousand ‰
questiondown ¿ acute ´ circumflex ˆ tilde ˜ macron ¯ breve ˘ dotaccent ˙ dieresis ¨ ring ˚ cedilla ¸ hungarumlaut ˝ ogonek ˛ caron ˇ
AE Æ ae æ OE Œ oe œ Oslash Ø oslash ø Lslash Ł lslash ł germandbls ß dotlessi ı Eth Ð eth ð Thorn Þ thorn þ Dcroat Đ dcroat đ hbar ħ Hbar Ħ
Tbar Ŧ tbar ŧ Eng Ŋ eng ŋ ij ij IJ IJ longs ſ kgreenlandic ĸ copyright © registered ® trademark ™ degree ° plusminus ± mu µ multiply × divide ÷
minus − brokenbar ¦ logicalnot ¬ ordfeminine ª ordmasculine º onesuperior ¹ twosuperior ² threesuperior ³ onequarter ¼ onehalf ½ threequarters ¾
Euro € euro € summation ∑ product ∏ integral ∫ partialdiff ∂ infinity ∞ radical √ approxequal ≈ notequal ≠ lessequal ≤ greaterequal ≥ lozenge ◊
Delta Δ Omega Ω Alpha Α Beta Β Gamma Γ Epsilon Ε Zeta Ζ Eta Η Theta Θ Iota Ι Kappa Κ Lambda Λ Mu Μ Nu Ν Xi Ξ Omicron Ο Pi Π Rho Ρ Sigma Σ Tau Τ
Upsilon Υ Phi Φ Chi Χ Psi Ψ alpha α beta β gamma γ delta δ epsilon ε zeta ζ eta η theta θ iota ι kappa κ lambda λ nu ν xi ξ omicron ο pi π rho ρ
sigma σ sigma1 ς tau τ upsilon υ phi φ chi χ psi ψ omega ω arrowleft ← arrowup ↑ arrowright → arrowdown ↓ arrowboth ↔ element ∈ emptyset ∅
universal ∀ existential ∃ nbspace   nonbreakingspace   sfthyphen - softhyphen - hyphenminus - quotereversed ‛ numero № checkmark ✓ filledbox ■
square □ blacksquare ■ circle ○ blackcircle ● triangleright ▷ H18533 ■ H22073 □ H18543 ▪ a71 • commaaccent ,`)

func pairs(list string) map[string]string {
	out := map[string]string{}
	words := strings.Split(strings.ReplaceAll(list, "\n", " "), " ")
	var fields []string
	for i := 0; i < len(words); i++ {
		fields = append(fields, words[i])
	}
	for i := 0; i+1 < len(fields); i += 2 {
		key, value := fields[i], fields[i+1]
		if value == "" { // a space
			value = " "
			i++
		}
		out[key] = value
	}
	return out
}

// accents are the marks that names of letters end with.
var accents = map[string]string{
	"acute": "\u0301", "grave": "\u0300", "circumflex": "\u0302", "dieresis": "\u0308", "tilde": "\u0303", "ring": "\u030a", "cedilla": "\u0327",
	"caron": "\u030c", "breve": "\u0306", "macron": "\u0304", "ogonek": "\u0328", "dotaccent": "\u0307", "dot": "\u0307", "hungarumlaut": "\u030b",
	"commaaccent": "\u0326", "dotbelow": "\u0323", "hookabove": "\u0309", "horn": "\u031b",
}

// glyphText returns the text that a glyph's name stands for; "" if the name says nothing.
func glyphText(glyph string) string {
	if len(glyph) > 100 {
		return ""
	}
	if i := strings.IndexByte(glyph, '.'); i > 0 {
		glyph = glyph[:i]
	}
	if text, has := glyphNames[glyph]; has {
		return text
	}
	if len(glyph) == 1 {
		return glyph
	}
	if strings.Contains(glyph, "_") {
		var b strings.Builder
		for part := range strings.SplitSeq(glyph, "_") {
			b.WriteString(glyphText(part))
		}
		return b.String()
	}
	if hex, is := strings.CutPrefix(glyph, "uni"); is && len(hex) >= 4 && len(hex)%4 == 0 {
		var units []uint16
		for i := 0; i < len(hex); i += 4 {
			n, err := strconv.ParseUint(hex[i:i+4], 16, 16)
			if err != nil {
				return ""
			}
			units = append(units, uint16(n))
		}
		return string(utf16.Decode(units))
	}
	if hex, is := strings.CutPrefix(glyph, "u"); is && len(hex) >= 4 && len(hex) <= 6 {
		if n, err := strconv.ParseUint(hex, 16, 32); err == nil {
			return string(rune(n))
		}
	}
	if digits, is := strings.CutPrefix(glyph, "afii"); is {
		n, err := strconv.Atoi(digits)
		switch {
		case err != nil:
		case n >= 10017 && n <= 10022:
			return string(rune(0x410 + n - 10017))
		case n == 10023:
			return "Ё"
		case n >= 10024 && n <= 10049:
			return string(rune(0x416 + n - 10024))
		case n >= 10065 && n <= 10070:
			return string(rune(0x430 + n - 10065))
		case n == 10071:
			return "ё"
		case n >= 10072 && n <= 10097:
			return string(rune(0x436 + n - 10072))
		case n == 61352:
			return "№"
		}
		return ""
	}
	for i := 1; i <= 2 && i < len(glyph); i++ {
		if mark, has := accents[glyph[i:]]; has {
			base := glyph[:i]
			if i == 2 {
				if base = glyphNames[base]; base == "" {
					continue
				}
			}
			if c := base[0]; c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || i == 2 {
				return norm.NFC.String(base + mark)
			}
		}
	}
	for accent, mark := range accents { // Greek letters with a long name
		if base, is := strings.CutSuffix(glyph, accent); is && glyphNames[base] != "" && len(base) > 2 {
			return norm.NFC.String(glyphNames[base] + mark)
		}
	}
	return ""
}

// standardUpper is the upper half of StandardEncoding.
var standardUpper = map[byte]string{
	0xa1: "¡", 0xa2: "¢", 0xa3: "£", 0xa4: "⁄", 0xa5: "¥", 0xa6: "ƒ", 0xa7: "§", 0xa8: "¤", 0xa9: "'", 0xaa: "“", 0xab: "«", 0xac: "‹", 0xad: "›",
	0xae: "fi", 0xaf: "fl", 0xb1: "–", 0xb2: "†", 0xb3: "‡", 0xb4: "·", 0xb6: "¶", 0xb7: "•", 0xb8: "‚", 0xb9: "„", 0xba: "”", 0xbb: "»", 0xbc: "…",
	0xbd: "‰", 0xbf: "¿", 0xc1: "`", 0xc2: "´", 0xc3: "ˆ", 0xc4: "˜", 0xc5: "¯", 0xc6: "˘", 0xc7: "˙", 0xc8: "¨", 0xca: "˚", 0xcb: "¸", 0xcd: "˝",
	0xce: "˛", 0xcf: "ˇ", 0xd0: "—", 0xe1: "Æ", 0xe3: "ª", 0xe8: "Ł", 0xe9: "Ø", 0xea: "Œ", 0xeb: "º", 0xf1: "æ", 0xf5: "ı", 0xf8: "ł", 0xf9: "ø",
	0xfa: "œ", 0xfb: "ß",
}

const (
	symbolUpper = "ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ"
	symbolLower = "αβχδεφγηιϕκλμνοπθρστυϖωξψζ"
)

// encodingTable returns the text of each code in a named encoding.
func encodingTable(base string) [256]string {
	var t [256]string
	for c := 0x20; c < 0x7f; c++ {
		t[c] = string(rune(c))
	}
	switch base {
	case "MacRomanEncoding":
		for c := 0x80; c < 0x100; c++ {
			t[c] = string(charmap.Macintosh.DecodeByte(byte(c)))
		}
	case "StandardEncoding":
		t[0x27], t[0x60] = "’", "‘"
		for c, s := range standardUpper {
			t[c] = s
		}
	case "Symbol":
		for i, r := range []rune(symbolUpper) {
			t['A'+i] = string(r)
		}
		for i, r := range []rune(symbolLower) {
			t['a'+i] = string(r)
		}
		t[0xb7], t[0xa3], t[0xb3], t[0xb1], t[0xb4], t[0xae] = "•", "≤", "≥", "±", "×", "→"
	case "ZapfDingbats":
		for c := range t {
			t[c] = ""
		}
		t[0x6c], t[0x6e], t[0x71], t[0x33], t[0x34], t[0x20] = "•", "■", "□", "✓", "✓", " "
	default: // WinAnsiEncoding
		for c := 0x80; c < 0x100; c++ {
			if r := charmap.Windows1252.DecodeByte(byte(c)); r != 0xfffd && (r < 0x80 || r >= 0xa0) {
				t[c] = string(r)
			} else {
				t[c] = "•"
			}
		}
		t[0xad] = "-"
	}
	return t
}

// textString decodes a string of the file's properties: UTF-16, UTF-8 or nearly Latin-1.
func textString(s string) string {
	switch {
	case strings.HasPrefix(s, "\xfe\xff"), strings.HasPrefix(s, "\xff\xfe"):
		return utf16String(s[2:], s[0] == 0xff)
	case strings.HasPrefix(s, "\xef\xbb\xbf"):
		return s[3:]
	}
	var b strings.Builder
	for i := range len(s) {
		b.WriteRune(charmap.Windows1252.DecodeByte(s[i]))
	}
	return b.String()
}

func utf16String(s string, little bool) string {
	units := make([]uint16, 0, len(s)/2)
	for i := 0; i+1 < len(s); i += 2 {
		if little {
			units = append(units, uint16(s[i])|uint16(s[i+1])<<8)
		} else {
			units = append(units, uint16(s[i])<<8|uint16(s[i+1]))
		}
	}
	return string(utf16.Decode(units))
}
