"""The raters' page: one file, no network, keeps what was entered in the browser and saves it as CSV."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from pipeline.evaluation.review.rubric import RUBRIC, SCALE

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem;color:#1d2733;background:#fff}
article{border-top:1px solid #c8d0d8;padding:1rem 0}pre{white-space:pre-wrap;background:#f3f5f7;padding:.75rem;
font:15px/1.45 ui-monospace,monospace;overflow-wrap:anywhere}fieldset{border:0;margin:.5rem 0;padding:0}
legend{font-weight:600}label{margin-right:1rem;white-space:nowrap}small{color:#55606b}textarea{width:100%}
button{font:inherit;padding:.5rem 1rem}#left{margin-left:1rem}
@media(prefers-color-scheme:dark){body{background:#14181d;color:#e4e8ec}pre{background:#20262d}small{color:#a0abb5}
article{border-color:#39424c}}
"""

_SCRIPT = """
const form=document.querySelector('form'),key='seatrial-review-'+SAMPLE,names=CRITERIA;
function all(){return [...document.querySelectorAll('article')].map(a=>{const f=new FormData(form),l=a.dataset.line;
 return [l,...names.map(n=>f.get(l+'.'+n)||''),f.get(l+'.comment')||'']})}
function tell(){const n=all().filter(r=>names.some((_,i)=>!r[i+1])).length;
 document.querySelector('#left').textContent=n?n+' answers are not rated in full yet':'all rated'}
try{for(const [k,v] of Object.entries(JSON.parse(localStorage.getItem(key)||'{}'))){
 const e=form.elements[k];if(e)e.value=v}}catch(e){}
form.addEventListener('input',()=>{try{localStorage.setItem(key,JSON.stringify(Object.fromEntries(new FormData(form))))
 }catch(e){}tell()});
document.querySelector('button').addEventListener('click',()=>{const q=t=>'"'+t.replaceAll('"','""')+'"';
 const text=[['line',...names,'comment'],...all()].map(r=>r.map(q).join(',')).join('\\r\\n')+'\\r\\n';
 const a=document.createElement('a');a.href=URL.createObjectURL(new Blob([text],{type:'text/csv'}));
 a.download='ratings.csv';a.click()});
tell();
"""


def _script(digest: str) -> str:
    names = json.dumps([c.name for c in RUBRIC])
    return _SCRIPT.replace("SAMPLE", json.dumps(digest)).replace("CRITERIA", names)


def _ratings(line: str) -> str:
    parts = []
    for c in RUBRIC:
        anchors = "; ".join(f"{n}: {text}" for n, text in c.anchors.items())
        radios = "".join(f'<label><input type="radio" name="{line}.{c.name}" value="{n}"> {n}</label>' for n in SCALE)
        parts.append(
            f"<fieldset><legend>{escape(c.name.capitalize())}</legend>{escape(c.question)} "
            f"<small>{escape(anchors)}</small><br>{radios}</fieldset>"
        )
    return "".join(parts)


def render(lines: Sequence[dict[str, str]], digest: str) -> str:
    """The page for these lines (``line``, ``prompt``, ``answer``); texts are escaped."""
    articles = "".join(
        f'<article data-line="{x["line"]}"><h2>{x["line"]}</h2><h3>Asked</h3><pre>{escape(x["prompt"])}</pre>'
        f"<h3>Answered</h3><pre>{escape(x['answer']) or '(nothing)'}</pre>{_ratings(x['line'])}"
        f'<label for="c{x["line"]}">Comment</label><textarea id="c{x["line"]}" name="{x["line"]}.comment"></textarea>'
        "</article>"
        for x in lines
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>Review {digest}</title><style>{_STYLE}</style><h1>Rate these answers</h1>"
        "<p>Each by itself, from 1 to 5. Who wrote which is not said. What you enter stays in this browser; when all "
        "is rated, save the file and send it back.</p>"
        f'<form onsubmit="return false">{articles}<p><button type="button">Save ratings.csv</button>'
        f'<output id="left"></output></p></form><script>{_script(digest)}</script></html>\n'
    )
