// @ts-check
// Question: when all is well, is every payment paid, is a repeated confirm the same answer, and does a read agree?
//
// paymentd: deploy/profiles/default.env. Keep RATE below its RATE_LIMIT of 30 per second.
// Run:      k6 run steady.js                           RATE=5 (per second) DURATION=1m
// Read:     checks and money_holds at 100 %, no dropped_iterations; own_time is what paymentd adds to the gateway's
//           100 to 300 ms (db and app of Server-Timing).
import { check } from 'k6';
import { Trend } from 'k6/metrics';

import { always, begin, end, patience, verify } from './lib/money.js';
import { confirm, newOrder, read } from './lib/paymentd.js';
import { after, number, seconds } from './lib/settings.js';

const rate = number('RATE', 5);
const ownTime = new Trend('own_time', true);

/** @type {import('k6/options').Options} */
export const options = {
  ...patience,
  scenarios: {
    buyers: {
      executor: 'constant-arrival-rate',
      rate: Math.max(1, Math.round(rate * 60)),
      timeUnit: '1m',
      duration: after(seconds('DURATION', '1m')),
      preAllocatedVUs: Math.ceil(rate * 2) + 5,
      maxVUs: Math.ceil(rate * 12) + 20,
    },
  },
  thresholds: {
    ...always,
    http_req_failed: ['rate==0'],
    dropped_iterations: ['count==0'],
    // Nobody waits longer than ANSWER_WITHIN, 10 s.
    payment_latency: ['max<10500'],
  },
};

export function setup() {
  return begin([{ op: '*', latency: { min: '100ms', max: '300ms' } }]);
}

/** @param {import('./lib/money.js').Run} run */
export default function (run) {
  const order = newOrder(run.run);
  const first = confirm(order);
  check(first, { 'confirm: 200 PAID': (a) => a.status === 200 && a.word === 'PAID', 'confirm: not a replay': (a) => !a.replayed });
  ownTime.add(first.own);
  verify(order, first);
  const again = confirm(order, { phase: 'again' });
  check(again, {
    'again: the same answer': (a) => a.status === first.status && a.raw === first.raw,
    'again: said to be a replay': (a) => a.replayed,
  });
  check(read(order.orderId), { 'read: agrees': (a) => a.status === 200 && a.word === 'PAID' && a.body.paymentKey === order.paymentKey });
}

/** @param {import('./lib/money.js').Run} run */
export function teardown(run) {
  end(run);
}
