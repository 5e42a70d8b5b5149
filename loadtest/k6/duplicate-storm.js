// @ts-check
// Question: 100 confirms of one order arrive at once. Is one sent to the gateway, do all get the same answer, and is
// one with another amount among them turned away?
//
// paymentd: deploy/profiles/default.env, any profile will do.
// Run:      k6 run duplicate-storm.js                  RATE=1 storm at a time, DURATION=20s
// Read:     storms is how many orders went through it; replayed is 99 for each.
import { check } from 'k6';
import http from 'k6/http';
import { Counter } from 'k6/metrics';

import { always, begin, end, patience, verify } from './lib/money.js';
import { confirmAll, newOrder, read } from './lib/paymentd.js';
import { after, number, seconds } from './lib/settings.js';
import { callsOf } from './lib/simulator.js';

const callers = 100;
const storms = new Counter('storms');
const replayed = new Counter('replayed');

http.setResponseCallback(http.expectedStatuses(200, 409));

/** @type {import('k6/options').Options} */
export const options = {
  ...patience,
  batch: callers + 1,
  batchPerHost: callers + 1,
  scenarios: {
    storms: { executor: 'constant-vus', vus: Math.round(number('RATE', 1)), duration: after(seconds('DURATION', '20s')) },
  },
  thresholds: {
    ...always,
    http_req_failed: ['rate==0'],
    storms: ['count>0'],
    payment_latency: ['max<10500'],
  },
};

export function setup() {
  // Long enough for all to arrive while the first is at the gateway.
  return begin([{ op: 'confirm', latency: '1s' }]);
}

/** @param {import('./lib/money.js').Run} run */
export default function (run) {
  const order = newOrder(run.run);
  const other = { ...order, amount: order.amount + 1 };
  const orders = Array.from({ length: callers + 1 }, (_, i) => (i === callers ? other : order));
  const answers = confirmAll(orders);
  const odd = answers.pop();
  const first = answers[0];
  if (!first || !odd) {
    return;
  }
  // Whoever comes first reserves; the one with another amount may be that.
  if (odd.status === 200) {
    check(answers, { 'all others: 409 order_conflict': (all) => all.every((a) => a.status === 409 && a.word === 'order_conflict') });
    verify(other, odd);
    return;
  }
  check(odd, { 'another amount: 409 order_conflict': (a) => a.status === 409 && a.word === 'order_conflict' });
  check(answers, {
    'all: 200 PAID': (all) => all.every((a) => a.status === 200 && a.word === 'PAID'),
    'all answers are equal': (all) => all.every((a) => a.raw === first.raw),
    'all but one are said to be replays': (all) => all.filter((a) => !a.replayed).length === 1,
  });
  check(callsOf('confirm', order.paymentKey), { 'one confirm at the gateway': (n) => n === 1 });
  check(read(order.orderId), { 'a read is the same answer too': (a) => a.raw === first.raw });
  verify(order, first);
  storms.add(1);
  replayed.add(answers.filter((a) => a.replayed).length);
}

/** @param {import('./lib/money.js').Run} run */
export function teardown(run) {
  end(run);
}
