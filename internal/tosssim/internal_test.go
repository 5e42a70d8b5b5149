package tosssim

import (
	"encoding/json"
	"testing"
)

// FuzzConfirmBody holds the quick reader of confirm bodies to encoding/json.
func FuzzConfirmBody(f *testing.F) {
	for _, s := range []string{
		`{"paymentKey":"test_a","orderId":"order-1","amount":15000}`, `{"amount":1,"orderId":"a,b}","paymentKey":"x"}`, `{"paymentKey":""}`,
		`{"paymentKey":"a\"b"}`, `{"amount":"1"}`, `{"amount":01}`, `{"amount":}`, `{"paymentKey":"x}`, `{"amount":1},`, `{"":"}`, `{"amount":1,}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var quick, slow confirmBody
		if !quick.scan(b) {
			return
		}
		if err := json.Unmarshal(b, &slow); err != nil {
			t.Fatalf("%q: taken, but %v", b, err)
		}
		if quick.PaymentKey != slow.PaymentKey || quick.OrderID != slow.OrderID || string(quick.Amount) != string(slow.Amount) {
			t.Errorf("%q: want %+v, got %+v", b, slow, quick)
		}
	})
}

func TestMinorUnits(t *testing.T) {
	t.Parallel()
	tests := []struct {
		in       string
		decimals int
		want     int64
		ok       bool
		out      string
	}{
		{"15000", 0, 15000, true, "15000"},
		{"15000.0", 0, 15000, true, "15000"},
		{"0.5", 0, 0, false, ""},
		{"12.5", 2, 1250, true, "12.5"},
		{"12.05", 2, 1205, true, "12.05"},
		{"12", 2, 1200, true, "12"},
		{"-0.07", 2, -7, true, "-0.07"},
		{"12.345", 2, 0, false, ""},
		{"1e3", 0, 0, false, ""},
		{"1.5e1", 2, 0, false, ""},
		{"", 0, 0, false, ""},
		{"-", 0, 0, false, ""},
		{`"1"`, 0, 0, false, ""},
		{"50000000000", 0, 50000000000, true, "50000000000"},
		{"99999999999999999999", 0, 0, false, ""},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			t.Parallel()
			got, ok := parseMinor([]byte(tt.in), tt.decimals)
			if got != tt.want || ok != tt.ok {
				t.Errorf("want %d %v, got %d %v", tt.want, tt.ok, got, ok)
			}
			if ok && string(appendMinor(nil, got, tt.decimals)) != tt.out {
				t.Errorf("written: want %s, got %s", tt.out, appendMinor(nil, got, tt.decimals))
			}
		})
	}
}

func TestCodesHaveStatusAndMessages(t *testing.T) {
	t.Parallel()
	codes := loadCodes()
	if len(codes) < 75 {
		t.Errorf("codes: want the documented 75 and more, got %d", len(codes))
	}
	for code, e := range codes {
		if e.Status < 400 || e.Status > 500 || e.KO == "" || e.EN == "" || len(e.EN) > 510 {
			t.Errorf("%s: %+v", code, e)
		}
	}
}

func TestTransactionKeysLeadBack(t *testing.T) {
	t.Parallel()
	for _, i := range []txIndex{1, 2, 1000, 1 << 20} {
		if back, ok := txIndexOf(i.key()); !ok || back != i || len(i.key()) > 64 {
			t.Errorf("%d: got %d %v from %s", i, back, ok, i.key())
		}
	}
	if _, ok := txIndexOf("00000000000000000000000000000000"); ok {
		t.Error("a made-up key was taken")
	}
}
